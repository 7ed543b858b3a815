//! Figures of benchmarks, as text.

pub mod figure;
