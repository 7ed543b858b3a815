//! The application of a host process: a program that uses COI, over all of the host process's offload
//! processes, and COI's graph of operations, which says what may start when.
//!
//! ```text
//!  work      the program, drawn from the seed: one call after the other
//!  program   makes the calls: operations go to the graph
//!  coming    creates and destroys pipelines and buffers, and waits for that
//!  perform   does what the graph says: run functions go to their process's machine
//!  movement  and bytes are moved by RMA
//!  history   knows what was asked for, and so what must be true
//! ```
//!
//! What must stay true: operations on the same bytes that COI does not order depend on each other
//! explicitly, so that there is one right answer to what each of them sees; and nothing is waited for
//! that only a process can do that may be gone.

mod coming;
mod movement;
mod perform;
mod program;
