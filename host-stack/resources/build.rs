//! Says which tests this machine can run.

fn main() {
    snaprig_test_needs::tell_root();
}
