//! The `snaprig` program: see [`snaprig_cli`].

fn main() -> std::process::ExitCode {
    snaprig_cli::main()
}
