//! The sink of COI, as C programs see it that gcc has linked with `libcoi_device.so`: what comes along
//! with them, what they may ask, what is told of their ends, and that a migration loses none of it.

mod scene;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use scene::{SNAPRIG, TIMEOUT, quiet};
use snaprig_card_platform::Kind;
use snaprig_coi::{
    CoiError, Engine, Pipeline, Process,
    ops::{Access, Buffer, BufferOptions, Event, Foreign, Order, Piece, register_user_event, wait},
    process::{LibraryOptions, ProcessOptions},
};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{Rig, guest};
use snaprig_snapify::Snapify;

/// Cores of each card.
const CORES: usize = 4;
/// COI_INVALID_POINTER and COI_INVALID_HANDLE.
const POINTER: i32 = 6;
const HANDLE: i32 = 14;
/// COI_DEVICE_KNC.
const KNIGHTS_CORNER: u64 = 4;

/// What gcc makes of the sinks and libraries.
struct Programs(tempfile::TempDir);

impl Programs {
    fn compile() -> Self {
        let programs = Self(tempfile::tempdir().expect("a directory"));
        let write = |name: &str, bytes: &[u8]| fs::write(programs.path(name), bytes).expect("room");
        write(guest::COI_DEVICE_NAME, guest::COI_DEVICE);
        write("libcoi_device.so", guest::COI_DEVICE);
        let extra = "#include <string.h>\n#include <stdint.h>\nvoid extra(uint32_t n, void **b, uint64_t *l, void *m, \
                     uint16_t ml, void *r, uint16_t rl) { (void)n; (void)b; (void)l; (void)m; (void)ml; memset(r, 9, rl); }";
        write("extra.c", extra.as_bytes());
        write("bad.c", b"void nowhere(void); void f(void) { nowhere(); }");
        write(
            "early.c",
            b"void nowhere(void); int main(void) { nowhere(); return 0; }",
        );
        programs.gcc(
            "libextra.so",
            &["-shared", "-fPIC", "-Wl,-soname,libextra.so"],
            "extra.c",
        );
        programs.gcc(
            "libmore.so",
            &["-shared", "-fPIC", "-Wl,-soname,libmore.so"],
            "extra.c",
        );
        programs.gcc(
            "libbad.so",
            &["-shared", "-fPIC", "-Wl,-soname,libbad.so"],
            "bad.c",
        );
        // It is linked with a library that has the function, and gets one that does not.
        write("whole.c", b"void nowhere(void) {}");
        write("part.c", b"void somewhere(void) {}");
        let part = ["-shared", "-fPIC", "-Wl,-soname,libpart.so"];
        programs.gcc("libpart.so", &part, "whole.c");
        let flags = ["-L.", "-lpart", "-Wl,-z,now"];
        programs.gcc("early", &flags, "early.c");
        programs.gcc("libpart.so", &part, "part.c");
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../guest-agent/include");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/coi/sink.c");
        let flags = ["-D_GNU_SOURCE", "-rdynamic", include, "-L.", "-lcoi_device"];
        programs.gcc("sink", &flags, source);
        programs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn gcc(&self, name: &str, flags: &[&str], source: &str) {
        let output = Command::new("gcc")
            .current_dir(self.0.path())
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o", name, source])
            .args(flags)
            .output()
            .expect("ci/setup installs gcc");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
    }

    fn options(&self, name: &str, arguments: &[&str], written: &Written) -> ProcessOptions {
        let written = written.clone();
        ProcessOptions {
            name: name.into(),
            binary: fs::read(self.path(name)).expect("it was compiled"),
            origin: Some(self.path(name)),
            arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
            env: vec!["LD_LIBRARY_PATH=/the/users".into()],
            proxy: Some(Arc::new(move |stream, bytes| {
                let mut written = written.0.lock().expect("no panic");
                written[usize::from(stream == 2)].push_str(&String::from_utf8_lossy(bytes));
            })),
            own_libraries: Some(self.0.path().into()),
            ..ProcessOptions::default()
        }
    }
}

/// What a process has written, to its output and its error.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<[String; 2]>>);

impl Written {
    fn get(&self) -> [String; 2] {
        self.0.lock().expect("no panic").clone()
    }
}

fn on_each_platform(test: impl Fn(&Rig, &Programs)) {
    let programs = Programs::compile();
    // The best one of this host, and the one that each has.
    for platform in [None, Some(Kind::Ptrace)] {
        let rig = Rig::builder().exe(SNAPRIG).cards(2).cores(CORES);
        test(&rig.platform(platform).start().expect("a rig"), &programs);
    }
}

fn engine(rig: &Rig, card: u16) -> Engine {
    Engine::get(rig.dir(), card).expect("a card")
}

fn submit(
    pipeline: &Pipeline,
    name: &str,
    buffers: &[(&Buffer, Access)],
    misc: &[u8],
    returned: &mut [u8],
    order: Order<'_>,
) -> Event {
    let function = pipeline.process().function(name).expect("it is there");
    // SAFETY: the tests keep what they lend until the run function is done.
    let returned = unsafe { Foreign::new(returned.as_mut_ptr(), returned.len()) };
    let submitted = pipeline.submit(function, buffers, misc, returned, order);
    submitted.expect("queued")
}

/// Runs a function, and returns so many bytes of its value.
fn run(pipeline: &Pipeline, name: &str, misc: &[u8], len: usize) -> Vec<u8> {
    let mut returned = vec![0; len];
    submit(pipeline, name, &[], misc, &mut returned, Order::now());
    returned
}

fn results(bytes: &[u8]) -> Vec<i32> {
    let words = bytes.chunks_exact(4);
    let word = |word: &[u8]| i32::from_le_bytes(word.try_into().expect("four bytes"));
    words.map(word).collect()
}

/// Processors, stack, engine, cores and kind of engine.
fn place(pipeline: &Pipeline) -> [u64; 5] {
    let bytes = run(pipeline, "where", &[], 40);
    let mut words = bytes.chunks_exact(8);
    let mut word = || u64::from_le_bytes(words.next().expect("40").try_into().expect("8"));
    [word(), word(), word(), word(), word()]
}

fn buffer(process: &Process) -> Buffer {
    let options = BufferOptions {
        bytes: 10_000,
        ..BufferOptions::default()
    };
    Buffer::create(std::slice::from_ref(process), options).expect("a buffer")
}

/// Takes a reference to the buffer; results of what makes no sense come before.
fn keep(pipeline: &Pipeline, buffer: &Buffer) {
    let mut returned = [0; 24];
    let buffers = [(buffer, Access::Write)];
    submit(
        pipeline,
        "references",
        &buffers,
        &[],
        &mut returned,
        Order::now(),
    );
    let expected = [POINTER, HANDLE, POINTER, HANDLE, HANDLE, 0];
    assert_eq!(results(&returned), expected);
}

/// A run function on a buffer waits until its reference is given back.
fn is_held_until_given_back(pipeline: &Pipeline, other: &Pipeline, buffer: &Buffer) {
    let mut returned = [0; 2];
    let buffers = [(buffer, Access::Write)];
    let event = submit(
        other,
        "echo",
        &buffers,
        b"ok",
        &mut returned,
        Order::default(),
    );
    let early = wait(&[event], true, Some(Duration::from_millis(100)));
    assert!(early.is_err(), "it ran while the buffer was in use");
    assert_eq!(results(&run(pipeline, "give_back", &[], 8)), [0, HANDLE]);
    wait(&[event], true, TIMEOUT).expect("it is not held any more");
    assert_eq!(&returned, b"ok");
}

#[test]
fn a_dynamic_sink_has_what_it_needs_and_what_it_was_given() {
    on_each_platform(|rig, programs| {
        let written = Written::default();
        let options = programs.options("sink", &[], &written);
        let process = Process::create_with(&engine(rig, 0), options).expect("a process");
        let pipeline = process.pipeline().expect("a pipeline");
        assert_eq!(run(&pipeline, "echo", b"hello", 5), b"hello");
        assert!(process.function("nowhere").is_err());
        for (name, value) in [
            ("LD_LIBRARY_PATH\0", "/the/users"),
            ("LD_PRELOAD\0", "none"),
            ("COI_MODE\0", "none"),
        ] {
            let told = run(&pipeline, "variable", name.as_bytes(), value.len());
            assert_eq!(told, value.as_bytes());
        }
        let all = (1 << CORES) - 1;
        assert_eq!(
            place(&pipeline),
            [all, 8 << 20, 0, CORES as u64, KNIGHTS_CORNER]
        );
        let bound = process
            .pipeline_with(&[0b110], 1 << 20)
            .expect("a pipeline");
        assert_eq!(place(&bound)[..2], [0b110, 1 << 20]);
        assert!(process.pipeline_with(&[1 << 40], 0).is_err());
        bound.destroy().expect("it is idle");
        let again = process.pipeline().expect("its number is free");
        assert_eq!(place(&again)[0], all);
        let buffer = buffer(&process);
        keep(&pipeline, &buffer);
        is_held_until_given_back(&pipeline, &again, &buffer);
        let event = register_user_event(0);
        let mut told = [event.0.to_le_bytes(), 1_u64.to_le_bytes()].concat();
        assert_eq!(results(&run(&pipeline, "signal_event", &told, 4)), [0]);
        wait(&[event], true, TIMEOUT).expect("it was signaled");
        told[8] = 0;
        assert_eq!(results(&run(&pipeline, "signal_event", &told, 4)), [HANDLE]);
        assert_eq!(results(&run(&pipeline, "say", b"one\0", 4)), [0]);
        assert_eq!(written.get(), ["out one\n", "err one\n"]);
        let exit = process.destroy(Duration::from_secs(10));
        assert_eq!(exit, Ok(Exit::Code(7)));
        assert_eq!(written.get()[0], "out one\nbye\n");
    });
}

#[test]
fn libraries_are_loaded_once_and_what_is_wrong_with_one_is_named() {
    on_each_platform(|rig, programs| {
        let written = Written::default();
        let options = programs.options("sink", &[], &written);
        let process = Process::create_with(&engine(rig, 0), options).expect("a process");
        let pipeline = process.pipeline().expect("a pipeline");
        let load = |name: &str| {
            let path = programs.path(name);
            let options = LibraryOptions::from_file(path.to_str().expect("a name"), None);
            let options = options.expect("it was compiled");
            let flags = libc::RTLD_NOW;
            process.load_library(LibraryOptions { flags, ..options })
        };
        let library = load("libextra.so").expect("it is loaded");
        assert_eq!(run(&pipeline, "extra", &[], 3), [9; 3]);
        load("libextra.so").expect_err("it is loaded already");
        let error = load("libbad.so").expect_err("it lacks a function");
        assert!(error.to_string().contains("nowhere"), "{error}");
        process.unload_library(library).expect("it was loaded");
        assert!(process.function("extra").is_err());
        let more = format!("{}\0", programs.path("libmore.so").display());
        assert_eq!(results(&run(&pipeline, "load", more.as_bytes(), 8)), [0, 1]);
        let none = results(&run(&pipeline, "load", b"/no/such.so\0", 8));
        assert!(none[0] != 0 && none[1] == 0);
        assert_eq!(run(&pipeline, "extra", &[], 3), [9; 3]);
    });
}

#[test]
fn the_end_of_a_sink_is_told_however_it_comes() {
    on_each_platform(|rig, programs| {
        let written = Written::default();
        let create = |name, arguments: &[&str]| {
            Process::create_with(&engine(rig, 0), programs.options(name, arguments, &written))
        };
        let short = create("sink", &["42"]).expect("its host is there before it ends");
        assert_eq!(short.wait(TIMEOUT), Ok(Exit::Code(42)));
        let crashing = create("sink", &[]).expect("a process");
        let pipeline = crashing.pipeline().expect("a pipeline");
        let event = submit(&pipeline, "crash", &[], &[], &mut [], Order::default());
        wait(&[event], true, TIMEOUT).expect_err("it ended");
        let exit = crashing.wait(TIMEOUT);
        assert_eq!(exit, Ok(Exit::Signal(libc::SIGSEGV)));
        let error = create("early", &[]).err().expect("it cannot be loaded");
        assert!(error.to_string().contains("nowhere"), "{error}");
    });
}

#[test]
fn a_migration_loses_nothing_of_a_sink() {
    on_each_platform(|rig, programs| {
        let written = Written::default();
        let options = programs.options("sink", &[], &written);
        let process = Process::create_with(&engine(rig, 0), options).expect("a process");
        let pipelines = [(); 3].map(|()| process.pipeline().expect("a pipeline"));
        let [gone, pipeline, other] = pipelines;
        gone.destroy().expect("it is idle");
        let options =
            LibraryOptions::from_file(programs.path("libextra.so").to_str().expect("a name"), None);
        let library = process.load_library(LibraryOptions {
            flags: libc::RTLD_NOW,
            ..options.expect("it was compiled")
        });
        let buffer = buffer(&process);
        keep(&pipeline, &buffer);
        let told = self::buffer(&process);
        let buffers = [(&told, Access::Write)];
        let mut lines = [0; 4];
        let counting = submit(
            &other,
            "count_aloud",
            &buffers,
            &[],
            &mut lines,
            Order::default(),
        );
        let dir = tempfile::tempdir().expect("a directory");
        snapify_there_and_back(rig, &process, dir.path());
        tell(&told);
        wait(&[counting], true, TIMEOUT).expect("it runs on");
        let counted: String = (0..u32::from_le_bytes(lines))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(place(&pipeline)[2], 0);
        assert_eq!(run(&pipeline, "extra", &[], 3), [9; 3]);
        assert_eq!(results(&run(&pipeline, "say", b"two\0", 4)), [0]);
        // What it did was done once, wherever it was.
        said_only(&written, &format!("{counted}out two\n"));
        assert_eq!(written.get()[1], "err two\n");
        is_held_until_given_back(&pipeline, &other, &buffer);
        let library = library.expect("it was loaded");
        process.unload_library(library).expect("it still is");
        let again = process.pipeline().expect("a number is free");
        assert_eq!(run(&again, "echo", b"again", 5), b"again");
        let exit = process.destroy(Duration::from_secs(10));
        assert_eq!(exit, Ok(Exit::Code(7)));
        said_only(&written, &format!("{counted}out two\nbye\n"));
    });
}

/// As much of a card's memory as two buffers cannot both have.
fn large(rig: &Rig, process: &Process) -> Buffer {
    let info = engine(rig, 0).info().expect("it is there");
    let options = BufferOptions {
        bytes: info.memory_bytes / 5 * 3,
        ..BufferOptions::default()
    };
    Buffer::create(std::slice::from_ref(process), options).expect("a buffer")
}

#[test]
fn a_run_function_waits_for_the_room_that_anothers_buffer_takes() {
    on_each_platform(|rig, programs| {
        let written = Written::default();
        let options = programs.options("sink", &[], &written);
        let process = Process::create_with(&engine(rig, 0), options).expect("a process");
        let [pipeline, other] = [(); 2].map(|()| process.pipeline().expect("a pipeline"));
        let [one, two] = [(); 2].map(|()| large(rig, &process));
        let told = buffer(&process);
        let all = Access::WriteEntire;
        let buffers = [(&told, Access::Write), (&one, all)];
        let order = Order::default();
        let first = submit(&pipeline, "count_aloud", &buffers, &[], &mut [], order);
        while written.get()[0].is_empty() {
            std::thread::yield_now();
        }
        let mut echoed = [0; 5];
        let second = submit(&other, "echo", &[(&two, all)], b"hello", &mut echoed, order);
        let waited = wait(&[second], true, Some(Duration::from_millis(200)));
        assert_eq!(waited, Err(CoiError::TimedOut));
        tell(&told);
        wait(&[first, second], true, TIMEOUT).expect("one after the other");
        assert_eq!(&echoed, b"hello");
        // Both at once there is never room for.
        let both = [(&one, all), (&two, all)];
        let event = submit(&pipeline, "echo", &both, &[], &mut [], order);
        let error = wait(&[event], true, TIMEOUT).expect_err("they do not fit");
        assert!(error.to_string().contains("memory"), "{error}");
        submit(
            &other,
            "echo",
            &[(&one, all)],
            b"again",
            &mut echoed,
            Order::now(),
        );
        assert_eq!(&echoed, b"again");
    });
}

/// The lines on a process's output are these, each once: the first ones that are not are in the message.
fn said_only(written: &Written, expected: &str) {
    let said = &written.get()[0];
    let mut lines = said.lines().zip(expected.lines()).enumerate();
    let wrong = lines.find(|(_, (said, expected))| said != expected);
    assert_eq!(wrong, None, "what was said, and was to be said");
    assert_eq!(said.len(), expected.len());
}

/// Writes to a buffer where it is: to that of a run function that runs.
fn tell(buffer: &Buffer) {
    let mut bytes = [1];
    // SAFETY: the bytes are there until the write is done.
    let memory = unsafe { Foreign::new(bytes.as_mut_ptr(), bytes.len()) };
    let piece = Piece { at: 0, memory };
    let written = buffer.write(None, vec![piece], false, Order::now());
    written.expect("it is somewhere");
}

fn snapify_there_and_back(rig: &Rig, process: &Process, dir: &Path) {
    let snapify = Snapify::new(process, quiet());
    // Onto its own card: it is swapped.
    for (name, card) in [("there", 1), ("swapped", 1), ("back", 0)] {
        let moved = snapify.migrate(&dir.join(name), &engine(rig, card));
        moved.expect("the card has room");
    }
}
