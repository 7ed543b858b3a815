//! Symbols with versions, for libraries that stand in for others (`libscif.so.0`, `libcoi_host.so.0`,
//! `libibverbs.so.1`).
//!
//! rustc tells the linker what a cdylib exports, and knows of no versions. A symbol that names its
//! own is exported all the same; only assembly can define one, which jumps to the function. The linker
//! has to be given the versions as well, in a version script.
//!
//! Such libraries may stand before functions of others: [`mod@next`] has those; [`descriptors`] says which files are whose.

pub mod descriptors;
pub mod next;

/// Exports a function under a name and a version of that: `export!(open, "scif_open@@SCIF_0.0")`. `@@` is
/// what a program gets that does not say which, `@` is another one. In one library each function is
/// exported once: local symbols are named after it.
#[macro_export]
macro_rules! export {
    ($function:ident, $versioned:expr) => {
        ::core::arch::global_asm!(
            concat!(".pushsection .text.snaprig_", stringify!($function), ", \"ax\", @progbits"),
            concat!(".globl snaprig_", stringify!($function)),
            concat!(".type snaprig_", stringify!($function), ", @function"),
            concat!("snaprig_", stringify!($function), ": jmp {function}"),
            concat!(".size snaprig_", stringify!($function), ", . - snaprig_", stringify!($function)),
            concat!(".symver snaprig_", stringify!($function), ", ", $versioned),
            ".popsection",
            function = sym $function,
        );
    };
}
