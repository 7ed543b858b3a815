//! What tests find on this host.

/// Platforms that cards can run on here. One that cannot run is named.
pub fn platforms() -> Vec<&'static str> {
    if std::path::Path::new("/dev/kvm").exists() {
        return vec!["kvm", "ptrace"];
    }
    println!("skipped: everything on kvm: no /dev/kvm");
    vec!["ptrace"]
}
