//! The `snaprig` program, for the integration tests: a rig makes its cards' processes of it.

fn main() -> std::process::ExitCode {
    snaprig_cli::main()
}
