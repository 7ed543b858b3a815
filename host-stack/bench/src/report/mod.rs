//! Reports of benchmarks that have figures, as text and as a page.
//!
//! | module | what it is |
//! |---|---|
//! | [`figure`] | a figure: groups of bars; as a table |
//! | [`plot`] | where everything of its plot is |
//! | [`page`] | all figures on a page of HTML |
//! | [`machine`] | what they were measured on |

pub mod figure;
pub mod machine;
pub mod page;
pub mod plot;
