//! The libraries that programs are given, within the program: what makes a `snaprig` that was installed alone whole. What becomes
//! of them is in the crate `snaprig-sdk`.

/// Libraries by the names that cargo gives their files, without `.so`.
pub const LIBRARIES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

/// A library's bytes, if it was built in.
pub fn library(stem: &str) -> Option<&'static [u8]> {
    let found = LIBRARIES.iter().find(|library| library.0 == stem);
    found.map(|library| library.1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_carried_are_libraries() {
        for (stem, bytes) in super::LIBRARIES {
            assert!(bytes.starts_with(b"\x7fELF"), "{stem}");
            assert_eq!(super::library(stem), Some(*bytes));
        }
    }
}
