//! What tests find on this host.

/// Makes a test for kvm and one for ptrace of each of the functions, which take the name of the platform that cards are to
/// run on.
macro_rules! on_each_platform {
    ($($name:ident)*) => {
        mod kvm {$(
            #[test]
            #[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
            fn $name() {
                super::$name("kvm");
            }
        )*}
        mod ptrace {$(
            #[test]
            fn $name() {
                super::$name("ptrace");
            }
        )*}
    };
}

pub(crate) use on_each_platform;
