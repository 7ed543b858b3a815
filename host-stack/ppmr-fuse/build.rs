//! Says which tests this machine can run.

fn main() {
    // Whether this user may use it is another question than whether it is there.
    let fuse = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    snaprig_test_needs::say("has_fuse", fuse.is_ok());
    snaprig_test_needs::tell_programs(&["dmtcp_launch"]);
}
