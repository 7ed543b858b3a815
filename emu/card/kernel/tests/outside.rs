//! Memory of a peer in programs: what they reach of it and when, that it is in no image, and that nothing of it is
//! left in the process that runs them.

#[allow(dead_code, reason = "not every test needs all of it")]
mod images;

use std::{
    any::Any,
    fs,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::MetadataExt,
    },
    sync::{Arc, Mutex},
};

use snaprig_card_driver::{
    device::{CharDevice, DeviceMemory},
    file::{Cx, Description, File},
    wait::SysResult,
};
use snaprig_card_kernel::ExitStatus;
use snaprig_card_memory::{CardMemory, PAGE, shown::Shown};
use snaprig_card_platform::{
    Exit, Kind, Regs, TRACED_MEMORY_FD, on_both,
    testing::{BOTH, CODE, DATA, Machine, WRITE},
};
use snaprig_dma::{Backend, Engine, Shared};

use images::{Images, compile, run_with};

const PAGES: u64 = 600;

/// Memory of somebody else, and what shows it.
fn peer() -> (Arc<CardMemory>, Shared) {
    let peer = Arc::new(CardMemory::new(PAGES * PAGE).unwrap());
    let engine = Engine::with_backend(1, Backend::Threads).unwrap();
    let fd = peer.memfd().as_fd().try_clone_to_owned().unwrap();
    let region = engine.add_region(fd, 0, peer.bytes()).unwrap();
    let memory = engine.memory(region).unwrap();
    (peer, memory)
}

fn access(kind: Kind) {
    // mov (%rdi), %al; incb (%rdi); syscall
    let machine = Machine::new(kind, &[0x8a, 0x07, 0xfe, 0x07, 0x0f, 0x05]);
    let (peer, memory) = peer();
    let shown = Shown::new(&machine.memory, &memory).unwrap();
    let range = shown.address(0, peer.bytes()).unwrap();
    let free = machine.memory.free_bytes();
    for page in 0..PAGES {
        let (va, frame) = (DATA + page * PAGE, range + page * PAGE);
        machine.tables.map(va, frame, WRITE).unwrap();
        peer.write(page * PAGE + 9, &[page as u8]);
    }
    let at = |page| Regs {
        rdi: DATA + page * PAGE + 9,
        ..Regs::default()
    };
    for page in [0, 7, 511, 512, PAGES - 1] {
        let mut regs = at(page);
        assert_eq!(machine.run(&mut regs), Exit::Syscall);
        assert_eq!(regs.rax as u8, page as u8);
        let mut byte = [0];
        peer.read(page * PAGE + 9, &mut byte);
        assert_eq!(byte[0], (page as u8).wrapping_add(1));
    }
    let traced = usize::from(kind == Kind::Ptrace);
    assert_eq!(descriptors(&machine.memory), vec![1; traced]);
    // Without the memory its addresses are nothing, whoever has them in a table.
    let taken = machine.tables.unmap(DATA, DATA + PAGES * PAGE);
    machine
        .space
        .flush(None, DATA, DATA + PAGES * PAGE)
        .unwrap();
    taken
        .iter()
        .for_each(|(_, frame)| machine.memory.put(*frame));
    drop(shown);
    machine.tables.map(DATA, range, WRITE).unwrap();
    assert_eq!(machine.tables.get(DATA), None);
    let exit = {
        // What a virtual CPU finds where nothing is ends its thread.
        let mut regs = at(0);
        regs.rip = CODE;
        machine.cpu().run(&mut regs)
    };
    match kind {
        Kind::Kvm => assert!(exit.is_err(), "{exit:?}"),
        Kind::Ptrace => assert!(matches!(exit, Ok(Exit::PageFault { .. })), "{exit:?}"),
    }
    assert!(free - machine.memory.free_bytes() < 8 * PAGE);
}

/// How many descriptors each process has that runs programs of this card.
fn descriptors(card: &CardMemory) -> Vec<usize> {
    let memory = fs::metadata(format!("/proc/self/fd/{}", card.memfd().as_raw_fd())).unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_card = processes.filter(|process| {
        let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
        // Before it is traced it is a copy of this process, with all that it has.
        let is_traced = status.contains("TracerPid:") && !status.contains("TracerPid:\t0\n");
        let file = fs::metadata(process.path().join(format!("fd/{TRACED_MEMORY_FD}")));
        is_traced && file.is_ok_and(|file| (file.dev(), file.ino()) == (memory.dev(), memory.ino()))
    });
    of_card
        .map(|process| fs::read_dir(process.path().join("fd")).unwrap().count())
        .collect()
}

on_both! {
    access
}

/// /dev/peer: shows memory of somebody else to who opens it.
struct Peer {
    card: Arc<CardMemory>,
    memory: Shared,
}

struct Open {
    /// None in a restored process.
    shown: Mutex<Option<Arc<Shown>>>,
}

impl CharDevice for Peer {
    fn open(&self, _cx: &mut Cx, _flags: i32) -> SysResult<Arc<dyn File>> {
        let shown = Arc::new(Shown::new(&self.card, &self.memory).unwrap());
        let shown = Mutex::new(Some(shown));
        Ok(Arc::new(Open { shown }))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        let shown = Mutex::default();
        Arc::new(Open { shown })
    }
}

impl File for Open {
    fn map(&self, _cx: &mut Cx, offset: u64, len: u64, _prot: i32) -> SysResult<DeviceMemory> {
        let gone = snaprig_card_driver::errno::Errno::ECONNRESET;
        let shown = self.shown.lock().unwrap().clone().ok_or(gone)?;
        let address = shown.address(offset, len).ok_or(gone)?;
        Ok(DeviceMemory::new([(address, len)], shown))
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: "/dev/peer".into(),
            flags: libc::O_RDWR,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

const PROGRAM: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
#define BYTES (600 * 4096)
#define CHECK(what) do { if (!(what)) { printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
static sigjmp_buf back;
static void caught(int signal) { siglongjmp(back, signal); }
static int work(void) {
  int fd = open("/dev/peer", O_RDWR), device = open("/dev/card/checkpoint", O_RDWR);
  char *own = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(own, 7, BYTES);
  volatile char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  at[5 * 4096] = 1;
  for (int flags = 1; flags < 3; flags++) {
    struct capture to = {open("/dev/image", O_WRONLY), flags};
    int restored = ioctl(device, 0x40086b01, &to);
    if (restored < 0 && errno == EOPNOTSUPP) return 77;
    CHECK(restored >= 0);
    if (restored) {
      int signal;
      CHECK(own[5 * 4096] == 7);
      struct sigaction action = {.sa_handler = caught};
      CHECK(sigaction(SIGBUS, &action, NULL) == 0);
      if ((signal = sigsetjmp(back, 1)) == 0) { at[5 * 4096] = 2; CHECK(!"there"); }
      CHECK(signal == SIGBUS);
      errno = 0;
      CHECK(write(1, (char *)at, 1) == -1 && errno == EFAULT);
      CHECK(mmap((void *)at, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED && errno == ECONNRESET);
      fd = open("/dev/peer", O_RDWR);
      CHECK(mmap((void *)at, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at);
      CHECK(at[5 * 4096] == 0);
      CHECK(munmap((void *)at, BYTES) == 0);
      printf("restored\n");
      return 0;
    }
    close(to.fd);
    /* Where writes are tracked, too. */
    for (int i = 0; i < BYTES; i += 4096) at[i]++;
    CHECK(at[5 * 4096] == flags + 1 && at[0] == flags);
  }
  printf("captured\n");
  return 0;
}
int main(int c, char **v) {
  int status, pid;
  if (c > 1) {
    if ((pid = fork()) == 0) exit(work());
  } else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    CHECK(pid > 0);
  }
  return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 10;
}"#;

#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
#[cfg_attr(
    not(has_write_tracking),
    ignore = "the host does not track writes (Linux 6.7 can)"
)]
fn what_was_a_peers_is_gone_in_a_restored_process() {
    let kinds = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, &[]);
    for from in kinds {
        let images = Images::default();
        let run = |kind, args: &[String], images: &Images| {
            let (_peer, memory) = peer();
            run_with(kind, 256 << 20, &program, args, images, |kernel, card| {
                let card = card.clone();
                kernel.register_device("/dev/peer", Arc::new(Peer { card, memory }));
            })
        };
        let (status, said) = run(from, &["first".into()], &images);
        assert_eq!((status, &*said), (ExitStatus::Exited(0), "captured\n"));
        let images = images.0.lock().unwrap();
        // Neither has what is not the card's.
        assert!(images[0].len() < 2 * 600 * 4096 && images[1].len() < 600 * 4096);
        let first = Images(Arc::new(Mutex::new(vec![images[0].clone()])));
        for to in kinds {
            let (status, said) = run(to, &[], &first);
            assert_eq!((status, &*said), (ExitStatus::Exited(0), "restored\n"));
        }
    }
}
