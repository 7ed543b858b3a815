//! Compilers and tools by the names that projects for Xeon Phi call them by: the system's gcc, g++ and binutils, with our
//! headers and libraries in their default directories.
//!
//! What must stay true: an option that gcc would read as another one (`-openmp` is `-o penmp` to it) never gets there. What is
//! neither Intel's nor gcc's gets there, and gcc says so.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

use snaprig_rig::sdk::Sdk;

use crate::{AnyError, programs::not_started};

/// Intel's compilers and tools, and what stands for them.
const INTEL: [(&str, &str); 4] = [
    ("icc", "gcc"),
    ("icpc", "g++"),
    ("xiar", "ar"),
    ("xild", "ld"),
];
/// What the names of the card's own tools begin with.
const PREFIXES: [&str; 2] = ["x86_64-k1om-linux-", "k1om-mpss-linux-"];
/// The tools whose names do.
const TOOLS: [&str; 15] = [
    "gcc", "g++", "c++", "cpp", "ar", "as", "ld", "nm", "objcopy", "objdump", "ranlib", "readelf",
    "size", "strings", "strip",
];

/// All names that this module answers to.
pub fn names() -> impl Iterator<Item = String> {
    let of_card = |prefix| TOOLS.map(|tool| format!("{prefix}{tool}"));
    let of_intel = INTEL.iter().map(|(name, _)| (*name).to_owned());
    PREFIXES.into_iter().flat_map(of_card).chain(of_intel)
}

/// A tool of the system's, in place of another.
pub struct Tool {
    program: &'static str,
    options: Options,
}

/// Whose options it is called with.
#[derive(Clone, Copy)]
enum Options {
    Intel,
    OfCard,
}

impl Tool {
    /// The one that stands for this name.
    pub fn named(name: &str) -> Option<Self> {
        let (program, options) = match INTEL.iter().find(|(intel, _)| *intel == name) {
            Some((_, program)) => (*program, Options::Intel),
            None => {
                let tool = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
                let tool = TOOLS.iter().find(|known| Some(**known) == tool)?;
                (*tool, Options::OfCard)
            }
        };
        Some(Self { program, options })
    }

    /// Becomes it.
    pub fn run(&self, arguments: Vec<OsString>) -> Result<ExitCode, AnyError> {
        let sdk = Sdk::of(&env::current_exe()?)?;
        if let Some(mkl) = arguments.iter().find(|argument| is_mkl(argument)) {
            let option = mkl.display();
            let what_helps = "link with another library that has its functions, as -lopenblas";
            return Err(format!("{option}: there is no MKL here; {what_helps}").into());
        }
        let mut command = Command::new(self.program);
        command.args(self.translated(arguments));
        if self.program == "ld" {
            command.arg("-L").arg(sdk.lib());
        }
        // gcc looks there after what its options name (gcc(1), Environment).
        for (variable, directory) in [
            ("C_INCLUDE_PATH", sdk.include()),
            ("CPLUS_INCLUDE_PATH", sdk.include()),
            ("LIBRARY_PATH", sdk.lib()),
        ] {
            command.env(variable, before(directory, env::var_os(variable))?);
        }
        Err(not_started(self.program.as_ref(), &command.exec()).into())
    }

    fn is_compiler(&self) -> bool {
        ["gcc", "g++", "c++", "cpp"].contains(&self.program)
    }

    fn translated(&self, arguments: Vec<OsString>) -> Vec<OsString> {
        match self.options {
            Options::Intel if self.is_compiler() => {
                let mut translated = from_intel(arguments);
                // Without a file it is a question, which would be one to link with more.
                let has_files = translated.iter().any(|argument| is_file(argument));
                if self.program == "gcc" && has_files {
                    translated.extend(WITH_C_PLUS_PLUS.map(OsString::from));
                }
                translated
            }
            Options::Intel => arguments,
            Options::OfCard => {
                let formats: &[_] = if self.is_compiler() { &[] } else { &FORMATS };
                let mut translated = of_card(arguments, formats);
                // `gcc -v` alone is a question, and is none with more.
                if self.is_compiler() && translated != ["-v"] {
                    translated.splice(0..0, CARD_MACROS.map(OsString::from));
                }
                translated
            }
        }
    }
}

/// A list of directories with one more, which is looked into first.
fn before(directory: &Path, others: Option<OsString>) -> io::Result<OsString> {
    let others = others.filter(|others| !others.is_empty());
    let others = others.iter().flat_map(env::split_paths);
    let all = std::iter::once(directory.to_owned()).chain(others);
    env::join_paths(all).map_err(io::Error::other)
}

/// icc links C++ too, gcc leaves out its library; it becomes no need of programs that are C alone.
const WITH_C_PLUS_PLUS: [&str; 3] = [
    "-Wl,--push-state,--as-needed",
    "-lstdc++",
    "-Wl,--pop-state",
];

fn is_file(argument: &OsStr) -> bool {
    !argument.as_encoded_bytes().starts_with(b"-")
}

/// What the card's gcc defines.
const CARD_MACROS: [&str; 2] = ["-D__k1om__=1", "-D__k1om=1"];
/// What the card's tools call what others call otherwise; nothing: it is the default.
const OF_CARD: [(&str, &str); 6] = [
    ("-march=k1om", ""),
    ("-mtune=k1om", ""),
    ("-melf_k1om", "-melf_x86_64"),
    ("-Wl,-melf_k1om", ""),
    ("-Wl,-m,elf_k1om", ""),
    ("--target=elf64-k1om", ""),
];
/// Words that are names of formats to tools that are no compilers, to which they may be files.
const FORMATS: [(&str, &str); 2] = [("elf_k1om", "elf_x86_64"), ("elf64-k1om", "elf64-x86-64")];

fn of_card(arguments: Vec<OsString>, formats: &[(&str, &str)]) -> Vec<OsString> {
    let translate = |argument: OsString| {
        let mut known = OF_CARD.iter().chain(formats);
        match known.find(|(name, _)| argument == *name) {
            Some((_, "")) => None,
            Some((_, other)) => Some((*other).into()),
            None => Some(argument),
        }
    };
    arguments.into_iter().filter_map(translate).collect()
}

/// Intel's options that gcc has under other names, or whose meaning is a macro.
const RENAMED: [(&str, &[&str]); 30] = [
    // The card's programs are the host's, but know where they are.
    ("-mmic", &["-D__MIC__=1"]),
    ("-openmp", &["-fopenmp"]),
    ("-qopenmp", &["-fopenmp"]),
    ("-openmp-simd", &["-fopenmp-simd"]),
    ("-qopenmp-simd", &["-fopenmp-simd"]),
    ("-openmp-stubs", &["-lgomp"]),
    ("-qopenmp-stubs", &["-lgomp"]),
    ("-restrict", &["-Drestrict=__restrict"]),
    ("-fast", &["-O3"]),
    ("-c99", &["-std=c99"]),
    ("-kpic", &["-fPIC"]),
    ("-KPIC", &["-fPIC"]),
    ("-vec", &["-ftree-vectorize"]),
    ("-no-vec", &["-fno-tree-vectorize"]),
    ("-ansi-alias", &["-fstrict-aliasing"]),
    ("-no-ansi-alias", &["-fno-strict-aliasing"]),
    ("-fma", &["-ffp-contract=fast"]),
    ("-no-fma", &["-ffp-contract=off"]),
    ("-fp-model=strict", &["-ffp-contract=off"]),
    ("-fp-model=precise", &["-fno-fast-math"]),
    ("-V", &["-v"]),
    ("-dryrun", &["-###"]),
    ("-tbb", &["-ltbb"]),
    ("-liomp5", &["-lgomp"]),
    ("-limf", &["-lm"]),
    ("-w0", &["-w"]),
    ("-Bstatic", &["-Wl,-Bstatic"]),
    ("-Bdynamic", &["-Wl,-Bdynamic"]),
    ("-Bsymbolic", &["-Wl,-Bsymbolic"]),
    ("-Bsymbolic-functions", &["-Wl,-Bsymbolic-functions"]),
];
/// Options that go, with the argument after them.
const DROPPED_WITH_VALUE: [&str; 12] = [
    "-diag-disable",
    "-diag-enable",
    "-diag-error",
    "-diag-warning",
    "-diag-remark",
    "-diag-suppress",
    "-fp-speculation",
    "-opt-report-file",
    "-opt-report-phase",
    "-opt-report-routine",
    "-inline-level",
    "-vec-threshold",
];
/// Options that go: how Intel's compiler optimises, offloads, reports and warns, and its own libraries.
const DROPPED: [&str; 31] = [
    "-fno-alias",
    "-falias",
    "-fno-fnalias",
    "-ffnalias",
    "-xhost",
    "-ip",
    "-no-ip",
    "-no-ipo",
    "-parallel",
    "-simd",
    "-no-simd",
    "-ftz",
    "-no-ftz",
    "-traceback",
    "-notraceback",
    "-align",
    "-noalign",
    "-scalar-rep",
    "-no-scalar-rep",
    "-sox",
    "-no-sox",
    "-w1",
    "-w2",
    "-w3",
    "-lirc",
    "-lsvml",
    "-lintlc",
    "-debug",
    "-complex-limited-range",
    "-early-template-check",
    "-export",
];
/// So do those that begin so.
const DROPPED_PREFIXES: [&str; 41] = [
    "-opt-",
    "-no-opt-",
    "-qopt-",
    "-qno-opt-",
    "-offload",
    "-no-offload",
    "-qoffload",
    "-qno-offload",
    "-vec-",
    "-vec_",
    "-qvec-",
    "-no-vec-",
    "-par-",
    "-par_",
    "-openmp-",
    "-openmp_",
    "-qopenmp-",
    "-override-limits",
    "-qoverride-limits",
    "-ax",
    "-ipo",
    "-inline-",
    "-no-inline-",
    "-unroll",
    "-no-unroll",
    "-guide",
    "-diag-",
    "-use-",
    "-Wcheck",
    "-Wremarks",
    "-Wbrief",
    "-fimf-",
    "-fp-model=",
    "-fp-speculation=",
    "-prec-",
    "-no-prec-",
    "-static-intel",
    "-shared-intel",
    "-mP2OPT",
    "-mGLOB",
    "-Qoption,",
];
/// Options whose argument may look like an option.
const WITH_VALUE: [&str; 22] = [
    "-o",
    "-I",
    "-D",
    "-U",
    "-L",
    "-l",
    "-x",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-MF",
    "-MT",
    "-MQ",
    "-T",
    "-u",
    "-z",
    "-Xlinker",
    "-Xassembler",
    "-Xpreprocessor",
    "-aux-info",
];
/// What can stand after `-debug`.
const DEBUG_KEYWORDS: [&str; 9] = [
    "all",
    "full",
    "none",
    "minimal",
    "extended",
    "expr-source-pos",
    "inline-debug-info",
    "semantic-stepping",
    "variable-locations",
];

fn from_intel(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut translated: Vec<OsString> = Vec::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        // An option of other than text is neither's.
        let text = argument.to_str().unwrap_or("");
        if WITH_VALUE.contains(&text) {
            translated.push(argument);
            translated.extend(arguments.next());
        } else if text == "-fp-model" {
            // The model is an argument of its own there.
            let model = arguments.next().unwrap_or_default();
            translated.extend(renamed(&format!("-fp-model={}", model.display())));
        } else if DROPPED_WITH_VALUE.contains(&text) {
            arguments.next();
        } else if ["-opt-report", "-debug"].contains(&text) {
            arguments.next_if(|next| next.to_str().is_some_and(is_value));
        } else if let Some((_, others)) = RENAMED.iter().find(|(name, _)| *name == text) {
            translated.extend(others.iter().map(OsString::from));
        } else if !is_dropped(text) {
            translated.push(argument);
        }
    }
    translated
}

fn renamed(option: &str) -> impl Iterator<Item = OsString> {
    let found = RENAMED.iter().find(|(name, _)| *name == option);
    let others = found.map_or(&[][..], |(_, others)| *others);
    others.iter().map(|other| OsStr::new(other).to_owned())
}

/// To gcc -mkl is a set of instructions (Key Locker).
fn is_mkl(option: &OsStr) -> bool {
    let option = option.to_str().unwrap_or_default();
    ["-mkl", "-qmkl"]
        .iter()
        .any(|mkl| option == *mkl || option.starts_with(&format!("{mkl}=")))
}

/// A level, or a keyword.
fn is_value(text: &str) -> bool {
    let is_level = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_level || DEBUG_KEYWORDS.contains(&text)
}

/// A letter for what becomes of diagnostics, and their numbers: `-wd167,383`.
fn is_of_diagnostics(option: &str) -> bool {
    let rest = option.strip_prefix("-w");
    let numbers = rest.and_then(|rest| rest.strip_prefix(['d', 'e', 'n', 'o', 'r', 'w']));
    let is_number = |numbers: &str| {
        let mut bytes = numbers.bytes();
        !numbers.is_empty() && bytes.all(|byte| byte.is_ascii_digit() || byte == b',')
    };
    numbers.is_some_and(is_number)
}

fn is_dropped(option: &str) -> bool {
    // A processor; gcc's -x names a language, in small letters.
    let is_processor = option
        .strip_prefix("-x")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()));
    is_processor
        || is_of_diagnostics(option)
        || DROPPED.contains(&option)
        || DROPPED_PREFIXES
            .iter()
            .any(|prefix| option.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(name: &str, line: &str) -> String {
        let arguments = line.split_whitespace().map(OsString::from).collect();
        let translated = Tool::named(name).expect("it is one").translated(arguments);
        let words: Vec<_> = translated
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn names_are_those_of_the_tools() {
        for name in names() {
            assert!(Tool::named(&name).is_some(), "{name}");
        }
        assert_eq!(Tool::named("icpc").unwrap().program, "g++");
        assert_eq!(
            Tool::named("x86_64-k1om-linux-ranlib").unwrap().program,
            "ranlib"
        );
        for other in [
            "snaprig",
            "gcc",
            "x86_64-k1om-linux-",
            "x86_64-k1om-linux-rm",
        ] {
            assert!(Tool::named(other).is_none(), "{other}");
        }
    }

    #[test]
    fn options_of_intel_become_those_of_gcc() {
        for (intel, gcc) in [
            ("-mmic -c a.c -o a.o", "-D__MIC__=1 -c a.c -o a.o"),
            ("-O3 -openmp -openmp-report2 a.c", "-O3 -fopenmp a.c"),
            (
                "-qopenmp -qopt-report=5 -xHost -std=c99 a.c",
                "-fopenmp -std=c99 a.c",
            ),
            (
                "-vec-report2 -no-opt-prefetch -opt-streaming-stores always.c",
                "always.c",
            ),
            ("-opt-report 3 a.c -opt-report b.c", "a.c b.c"),
            ("-debug inline-debug-info -g a.c", "-g a.c"),
            (
                "-offload-option,mic,compiler,-O2 -offload-attribute-target=mic a.c",
                "a.c",
            ),
            (
                "-wd1419,383 -diag-disable 167 -diag-enable=vec -w2 -Wall a.c",
                "-Wall a.c",
            ),
            ("-fp-model strict a.c", "-ffp-contract=off a.c"),
            ("-fp-model fast=2 a.c", "a.c"),
            (
                "-unroll4 -unroll=2 -no-prec-div -fimf-precision=high a.c",
                "a.c",
            ),
            ("-axAVX -xCORE-AVX2 -x c++ -xc a.c", "-x c++ -xc a.c"),
            (
                "a.o -liomp5 -limf -lsvml -lpthread",
                "a.o -lgomp -lm -lpthread",
            ),
            (
                "-shared-intel -static-libgcc -no-pie a.c",
                "-static-libgcc -no-pie a.c",
            ),
            // What is an option's own argument is none of Intel's.
            (
                "-o -openmp -I -opt-x -Xlinker -offload",
                "-o -openmp -I -opt-x -Xlinker -offload",
            ),
            ("-openmp-stubs -openmp-lib compat.c", "-lgomp compat.c"),
            (
                "-Bstatic -lx -wrapper time -use-msasm",
                "-Wl,-Bstatic -lx -wrapper time",
            ),
            // What nobody knows is for gcc to refuse.
            ("a.c -nonsense", "a.c -nonsense"),
        ] {
            assert_eq!(translated("icpc", intel), gcc, "{intel}");
        }
    }

    #[test]
    fn icc_links_c_plus_plus_where_there_is_something_to_link() {
        let linked = translated("icc", "-shared a.o -o a.so");
        assert!(linked.starts_with("-shared a.o -o a.so "), "{linked}");
        assert!(linked.contains(" -lstdc++ "), "{linked}");
        assert_eq!(translated("icc", "-V"), "-v");
        assert_eq!(translated("icc", "--version"), "--version");
    }

    #[test]
    fn tools_of_the_card_make_programs_of_this_machine() {
        let gcc = "x86_64-k1om-linux-gcc";
        assert_eq!(translated(gcc, "-v"), "-v");
        assert_eq!(
            translated(gcc, "-m64 -march=k1om -c a.c"),
            "-D__k1om__=1 -D__k1om=1 -m64 -c a.c"
        );
        assert!(translated(gcc, "a.c -o elf_k1om").ends_with(" -o elf_k1om"));
        assert_eq!(
            translated("k1om-mpss-linux-ld", "-m elf_k1om a.o"),
            "-m elf_x86_64 a.o"
        );
    }
}
