//! COIRESULT, and what a call failed of.

use std::{ffi::c_char, fmt};

use snaprig_coi::CoiError;
pub use snaprig_offload_wire::coi_result::code;
use snaprig_offload_wire::coi_result::name;

/// COIResultGetName.
pub extern "C" fn COIResultGetName(code: u32) -> *const c_char {
    name(code).as_ptr()
}

/// Why a call fails: its code, and a sentence for whoever traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    pub why: String,
}

impl Failure {
    pub fn new(code: u32, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { code, why }
    }
}

impl From<u32> for Failure {
    fn from(code: u32) -> Self {
        Self::new(code, "")
    }
}

impl From<CoiError> for Failure {
    fn from(error: CoiError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self.code).to_string_lossy())?;
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.why),
        }
    }
}

/// What the functions come to.
pub type Done<T = ()> = Result<T, Failure>;

/// Fails a call unless this is so.
pub fn require(is: bool, code: u32) -> Done {
    match is {
        true => Ok(()),
        false => Err(code.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_name_and_what_is_none_is_an_error() {
        assert_eq!(name(15), c"COI_RETRY");
        assert_eq!(name(30), c"COI_INCORRECT_FORMAT");
        assert_eq!(name(31), c"COI_ERROR");
        assert_eq!(name(u32::MAX), c"COI_ERROR");
    }
}
