//! A process that locks itself up as a card's does, and then does what it must not: `forbidden PLATFORM
//! ROLE DEED`.

use std::{error::Error, fs, net::TcpListener, process::ExitCode};

use snaprig_rig::sandbox::{self, Role};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [platform, role, deed] = &arguments[..] else {
        return Err("usage: forbidden PLATFORM ROLE DEED".into());
    };
    let role = match role.as_str() {
        "guest" => Role::Guest,
        "host" => Role::Host,
        "rig" => Role::Rig,
        _ => Role::Any,
    };
    let deed = deed.clone();
    // The first thread that a process starts has the C library prepare for threads.
    let first = std::thread::spawn(|| ());
    first.join().expect("it does not panic");
    let sandbox = sandbox::enter(platform.parse()?, false)?;
    let culprit = std::thread::Builder::new().name("culprit".into());
    let culprit = culprit.spawn(move || {
        sandbox.narrow(role)?;
        commit(&deed)
    })?;
    culprit.join().expect("it does not panic")
}

fn commit(deed: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    match deed {
        "nothing" => println!("as it should be"),
        "connect" => drop(TcpListener::bind("127.0.0.1:0")?),
        "read a file" => drop(fs::read("/etc/passwd")?),
        _ => raw(deed),
    }
    Ok(())
}

fn raw(deed: &str) {
    const PAGE: usize = 4096;
    let null = std::ptr::null_mut::<libc::c_void>();
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: none of these touches memory that anybody uses: that is not why they are forbidden.
    unsafe {
        match deed {
            "run a program" => drop(libc::execv(
                c"/bin/true".as_ptr(),
                [std::ptr::null()].as_ptr(),
            )),
            "map code" => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(null, PAGE, executable, flags, -1, 0);
            }
            "change to code" => drop(libc::mprotect(null, PAGE, executable)),
            "make a namespace" => {
                let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
                libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0);
            }
            "make a ring" => drop(libc::syscall(libc::SYS_io_uring_setup, 1, null)),
            "debug" => drop(libc::ptrace(libc::PTRACE_ATTACH, libc::getpid())),
            "kill" => drop(libc::kill(libc::getpid(), libc::SIGTERM)),
            "ask a terminal" => {
                let mut size = [0u16; 4];
                libc::ioctl(0, libc::TIOCGWINSZ, size.as_mut_ptr());
            }
            "become dumpable" => drop(libc::prctl(libc::PR_SET_DUMPABLE, 1)),
            "raise a limit" => {
                let limit = libc::rlimit {
                    rlim_cur: 1,
                    rlim_max: 1,
                };
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
            "32-bit call" => std::arch::asm!(
                // getpid(2), as 32-bit programs call it.
                "int 0x80",
                inout("eax") 20 => _,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            ),
            _ => panic!("{deed}?"),
        }
    }
}
