//! Loading programs: execve(2), and the first program of a card.

use std::sync::{Arc, Mutex};

use snaprig_card_driver::{
    clock,
    device::UserMemory,
    errno::Errno,
    random,
    wait::{Stop, SysResult},
};
use snaprig_card_fs::Vfs;
use snaprig_card_memory::{PAGE, USER_END};
use snaprig_card_platform::{Regs, xstate};

use crate::{
    call::Call,
    elf::{self, Executable},
    mm::{
        AddressSpace, Area, Backing, Traits, USER_START,
        layout::{STACK_TOP, VDSO_BASE},
    },
    rseq,
    state::lock,
};

/// Where position-independent programs go (as on Linux without randomisation).
const PROGRAM_BASE: u64 = 0x5555_5555_4000;
const INTERPRETER_BASE: u64 = 0x7eff_0000_0000;
/// Size of the first stack.
const STACK_BYTES: u64 = 8 << 20;
static VDSO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));
/// Most bytes of arguments and environment (Linux: a quarter of the stack limit).
const STRINGS_MAX: usize = (STACK_BYTES / 4) as usize;
const STRINGS_COUNT_MAX: usize = 65_536;
const PATH_MAX: usize = 4096;
const SCRIPT_DEPTH_MAX: usize = 4;

const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_FLAGS: u64 = 8;
const AT_ENTRY: u64 = 9;
const AT_IDS: [u64; 4] = [11, 12, 13, 14];
const AT_PLATFORM: u64 = 15;
const AT_HWCAP: u64 = 16;
const AT_CLKTCK: u64 = 17;
const AT_SECURE: u64 = 23;
const AT_SYSINFO_EHDR: u64 = 33;
const AT_RANDOM: u64 = 25;
const AT_HWCAP2: u64 = 26;
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
const AT_RSEQ_ALIGN: u64 = 28;
const AT_EXECFN: u64 = 31;
const AT_MINSIGSTKSZ: u64 = 51;
/// `AT_HWCAP2`: user space may use rdfsbase and its like.
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Where a loaded program starts.
pub struct Start {
    /// First instruction.
    pub entry: u64,
    /// Stack pointer.
    pub stack: u64,
    /// The program's path, scripts resolved to their interpreter.
    pub exe: String,
    /// The thread's name: the last part of the path, at most 15 bytes.
    pub name: String,
}

/// Loads the program at `path` into an empty address space.
pub fn load(
    vfs: &mut Vfs,
    mm: &mut AddressSpace,
    path: &str,
    argv: &[Vec<u8>],
    env: &[Vec<u8>],
) -> Result<Start, Errno> {
    let (path, argv) = resolve_script(vfs, path, argv.to_vec(), 0)?;
    let program = read_headers(vfs, &path)?;
    let base = if program.relocatable { PROGRAM_BASE } else { 0 };
    let end = map_program(vfs, mm, &path, &program, base)?;
    mm.brk = (end.next_multiple_of(PAGE), end.next_multiple_of(PAGE));
    let (entry, interpreter_base) = match &program.interpreter {
        None => (base + program.entry, 0),
        Some(interpreter) => {
            let ld = read_headers(vfs, interpreter)?;
            map_program(vfs, mm, interpreter, &ld, INTERPRETER_BASE)?;
            (INTERPRETER_BASE + ld.entry, INTERPRETER_BASE)
        }
    };
    let aux = [
        (AT_PHDR, base + program.headers.0),
        (AT_PHENT, program.headers.2.into()),
        (AT_PHNUM, program.headers.1.into()),
        (AT_PAGESZ, PAGE),
        (AT_BASE, interpreter_base),
        (AT_FLAGS, 0),
        (AT_ENTRY, base + program.entry),
        (AT_CLKTCK, 100),
        (AT_SECURE, 0),
        (AT_HWCAP, std::arch::x86_64::__cpuid(1).edx.into()),
        (AT_HWCAP2, HWCAP2_FSGSBASE),
        (AT_RSEQ_FEATURE_SIZE, rseq::FEATURE_BYTES.into()),
        (AT_RSEQ_ALIGN, rseq::ALIGN),
        (AT_SYSINFO_EHDR, VDSO_BASE),
        (AT_MINSIGSTKSZ, xstate::bytes() as u64 + 1024),
    ];
    map_vdso(vfs, mm)?;
    let stack = build_stack(mm, &path, &argv, env, &aux)?;
    let name = path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(15)
        .collect();
    Ok(Start {
        entry,
        stack,
        exe: path,
        name,
    })
}

fn read_headers(vfs: &Vfs, path: &str) -> Result<Executable, Errno> {
    let inode = vfs.inode(path)?;
    elf::read(inode.size(), |offset, len| inode.read_at(offset, len))
}

/// `#!interpreter [argument]` (execve(2), interpreter scripts).
fn resolve_script(
    vfs: &Vfs,
    path: &str,
    argv: Vec<Vec<u8>>,
    depth: usize,
) -> Result<(String, Vec<Vec<u8>>), Errno> {
    let head = vfs.read_head(path, 256)?;
    let Some(line) = head.strip_prefix(b"#!") else {
        return Ok((path.to_owned(), argv));
    };
    if depth == SCRIPT_DEPTH_MAX {
        return Err(Errno::ELOOP);
    }
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line)
        .map_err(|_| Errno::ENOEXEC)?
        .trim();
    let (interpreter, argument) = match line.split_once(char::is_whitespace) {
        Some((interpreter, argument)) => (interpreter, Some(argument.trim().into())),
        None => (line, None),
    };
    let mut script_argv = vec![interpreter.into()];
    script_argv.extend(argument);
    script_argv.push(path.into());
    script_argv.extend(argv.into_iter().skip(1));
    resolve_script(vfs, interpreter, script_argv, depth + 1)
}

/// Maps the segments; returns the first address behind them.
fn map_program(
    vfs: &mut Vfs,
    mm: &mut AddressSpace,
    path: &str,
    program: &Executable,
    base: u64,
) -> Result<u64, Errno> {
    let inode = vfs.inode(path)?;
    let mut end = 0;
    for segment in &program.segments {
        let start = base + segment.address;
        let (first, file_end) = (start & !(PAGE - 1), start + segment.file_bytes);
        let (file_pages_end, memory_end) = (
            file_end.next_multiple_of(PAGE),
            (start + segment.memory_bytes).next_multiple_of(PAGE),
        );
        if first < USER_START || memory_end > USER_END || first < end {
            return Err(Errno::ENOEXEC);
        }
        let area = |end, backing| Area {
            end,
            prot: segment.prot,
            shared: false,
            backing,
            traits: Traits::default(),
        };
        if segment.file_bytes > 0 {
            let backing = Backing::File {
                inode: inode.clone(),
                path: path.to_owned(),
                offset: segment.offset & !(PAGE - 1),
            };
            mm.add(first, area(file_pages_end, backing))?;
            // The rest of the last page is the start of .bss.
            if segment.memory_bytes > segment.file_bytes && file_end % PAGE != 0 {
                let zeros = vec![0; (file_pages_end - file_end) as usize];
                mm.fill(file_end, &zeros)?;
            }
        }
        let bss = if segment.file_bytes > 0 {
            file_pages_end
        } else {
            first
        };
        if memory_end > bss {
            mm.add(bss, area(memory_end, Backing::Anonymous))?;
        }
        end = memory_end;
    }
    Ok(end)
}

/// The vDSO (vdso(7)), a copy of its own for each process, which it keeps wherever it goes; below it
/// the card's clock.
fn map_vdso(vfs: &Vfs, mm: &mut AddressSpace) -> Result<(), Errno> {
    let clock = Area {
        end: VDSO_BASE,
        prot: libc::PROT_READ,
        shared: true,
        backing: Backing::File {
            inode: vfs.inode(clock::PATH)?,
            path: clock::PATH.into(),
            offset: 0,
        },
        traits: Traits {
            read_only: true,
            ..Traits::default()
        },
    };
    mm.add(VDSO_BASE - PAGE, clock)?;
    let code = Area {
        end: VDSO_BASE + (VDSO.len() as u64).next_multiple_of(PAGE),
        prot: libc::PROT_READ | libc::PROT_EXEC,
        shared: false,
        backing: Backing::Anonymous,
        traits: Traits::default(),
    };
    mm.add(VDSO_BASE, code)?;
    for (page, bytes) in VDSO.chunks(PAGE as usize).enumerate() {
        mm.fill(VDSO_BASE + page as u64 * PAGE, bytes)?;
    }
    Ok(())
}

/// The first stack: strings, then auxv, environment, arguments, count (x86-64 ABI, 3.4.1).
fn build_stack(
    mm: &mut AddressSpace,
    path: &str,
    argv: &[Vec<u8>],
    env: &[Vec<u8>],
    aux: &[(u64, u64)],
) -> Result<u64, Errno> {
    let bottom = STACK_TOP - STACK_BYTES;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    mm.add(
        bottom,
        Area {
            end: STACK_TOP,
            prot,
            shared: false,
            backing: Backing::Anonymous,
            traits: Traits::default(),
        },
    )?;
    let mut at = STACK_TOP;
    let mut push = |mm: &mut AddressSpace, bytes: &[u8]| {
        at -= bytes.len() as u64;
        if at < bottom + STACK_BYTES / 2 {
            return Err(Errno::E2BIG);
        }
        UserMemory::write(mm, at, bytes).map(|()| at)
    };
    let mut random = [0; 16];
    random::fill(&mut random);
    let random = push(mm, &random)?;
    let platform = push(mm, b"x86_64\0")?;
    let mut string = |mm: &mut AddressSpace, text: &[u8]| push(mm, &[text, &[0]].concat());
    let file = string(mm, path.as_bytes())?;
    let env = env
        .iter()
        .map(|text| string(mm, text))
        .collect::<Result<Vec<_>, _>>()?;
    let argv = argv
        .iter()
        .map(|text| string(mm, text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut words = vec![argv.len() as u64];
    words.extend(argv.iter().copied().chain([0]).chain(env).chain([0]));
    for (key, value) in aux.iter().copied().chain(AT_IDS.map(|id| (id, 0))).chain([
        (AT_RANDOM, random),
        (AT_PLATFORM, platform),
        (AT_EXECFN, file),
        (0, 0),
    ]) {
        words.extend([key, value]);
    }
    let start = (at - words.len() as u64 * 8) & !15;
    if start < bottom + STACK_BYTES / 2 {
        return Err(Errno::E2BIG);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    UserMemory::write(mm, start, &bytes)?;
    Ok(start)
}

impl Call<'_> {
    /// execve(2). The other threads end first; then everything of the old program goes.
    pub fn execve(&mut self, path: u64, argv: u64, env: u64) -> SysResult {
        let path = self.read_string(path, PATH_MAX)?;
        let path = match path.as_str() {
            "/proc/self/exe" => self.process().exe.clone(),
            _ => self.absolute(&path),
        };
        let (argv, env) = (self.strings(argv)?, self.strings(env)?);
        let mut mm = AddressSpace::new(&self.kernel.memory, &*self.kernel.platform)?;
        let start = load(&mut self.state.vfs, &mut mm, &path, &argv, &env)?;
        self.end_other_threads()?;
        self.become_program(mm, start, argv)
    }

    /// Waits until the caller is the only thread of its process.
    fn end_other_threads(&mut self) -> Result<(), Stop> {
        let (me, others) = (self.tid, self.process().threads.clone());
        if others == [me] {
            return Ok(());
        }
        self.state.end_threads_but(self.pid, me);
        Err(Stop::wait(self.process().children))
    }

    fn become_program(&mut self, mm: AddressSpace, start: Start, argv: Vec<Vec<u8>>) -> SysResult {
        self.leave_futexes();
        self.cpu.set_space(mm.space()).map_err(|error| {
            tracing::error!(%error, "execve");
            Errno::ENOMEM
        })?;
        // A parent that vforked goes on with the memory that was shared with it.
        let process = self.process();
        process.mm = Arc::new(Mutex::new(mm));
        process.chain = None;
        process.exe = start.exe;
        process.argv = argv;
        process.timers.become_program();
        process.has_executed = true;
        process.credentials.become_program();
        process.settings = process.settings.of_program();
        let files = lock(&process.files).clone();
        process.files = Arc::new(Mutex::new(files));
        let mut actions = lock(&process.actions).clone();
        actions.reset_handlers();
        process.actions = Arc::new(Mutex::new(actions));
        let files = process.files.clone();
        self.with_wake(|wake| lock(&files).close_on_exec(wake));
        self.release_vfork_parent();
        let (tid, pid) = (self.tid, self.pid);
        if tid != pid {
            self.state.rename_thread(tid, pid);
            self.tid = pid;
        }
        let thread = self.thread();
        thread.name = start.name;
        thread.alt_stack = super::signal::AltStack::default();
        thread.rseq = rseq::Rseq::default();
        thread.xstate = Some(xstate::initial());
        thread.regs = Regs {
            rip: start.entry,
            rsp: start.stack,
            ..Regs::default()
        };
        // rax of the new program.
        Ok(0)
    }

    /// Strings are bytes: nothing says that they are text.
    fn strings(&mut self, table: u64) -> Result<Vec<Vec<u8>>, Stop> {
        let (mut strings, mut bytes) = (Vec::new(), 0);
        if table == 0 {
            return Ok(strings);
        }
        loop {
            let [pointer] = self.read_words(table.wrapping_add(strings.len() as u64 * 8))?;
            if pointer == 0 {
                return Ok(strings);
            }
            let string = self.read_bytes(pointer, STRINGS_MAX - bytes)?;
            bytes += string.len() + 1;
            if bytes >= STRINGS_MAX || strings.len() >= STRINGS_COUNT_MAX {
                return Err(Errno::E2BIG.into());
            }
            strings.push(string);
        }
    }
}
