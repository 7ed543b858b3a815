//! Has tests that need a privilege be ignored where there is none.

fn main() {
    snaprig_test_needs::tell_system_calls_wait();
}
