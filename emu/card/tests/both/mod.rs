//! Tests on both platforms.

/// Makes a test for kvm and one for ptrace of each of the functions.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod kvm {$(
            #[test]
            fn $name() {
                if !std::path::Path::new("/dev/kvm").exists() {
                    println!("skipped: {}: no /dev/kvm", stringify!($name));
                    return;
                }
                super::$name(super::Kind::Kvm);
            }
        )*}
        mod ptrace {$(
            #[test]
            fn $name() {
                super::$name(super::Kind::Ptrace);
            }
        )*}
    };
}

pub(crate) use on_both;
