//! The COI daemon: see [`coi_device::daemon`].

fn main() -> std::io::Result<()> {
    coi_device::daemon::main()
}
