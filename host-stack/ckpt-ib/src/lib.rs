//! Queue pairs in a checkpoint, whatever HCA is below: what a library that stands between a program and its libibverbs
//! must know and do, as machines that do no I/O.
//!
//! ```text
//!  program      post, poll: virtual names             program
//!     |                                                  |
//!  [`Process`]  logs, counts, completions put by      [`Process`]
//!     |                                                  |
//!  libibverbs   real names    ====messages====>       libibverbs
//!
//!  phase      each process                            between processes
//!  quiesce    keeps the program out; says how many    counts of messages, to the board
//!             messages it has ever sent to whom
//!  drain      puts completions by, until as many      receives are lent to messages for which
//!             have come as were sent                  the program has posted none
//!  save       nothing is under way
//!  rebuild    makes everything again                  real names, to the board
//!  exchange   connects; posts receives again          real names of the others
//!  refill     posts again what nobody carried out
//!  go         the program finds completions that were put by
//! ```
//!
//! The rules are those of DMTCP's InfiniBand plugin (Cao et al., HPDC '14): shadow structures, a log of posted work, drain,
//! refill, post again (3.1); virtual names (3.2). What its section 5 leaves open is decided so:
//!
//! - Nothing sleeps in a drain. Who has quiesced knows how many messages it has sent on each connection ([`drain`]), so its
//!   peer knows how many must come. A request whose completion nobody asked for is known to be done when one that is
//!   posted behind it is ([`sends`]).
//! - A message that waits for a receive would wait for ever: a receive is lent to it, and the program's next one is served
//!   with what came ([`receives`]).
//! - What is unreliable is waited for for a time, once.
//! - A name that is given after a restart is never one that is given already ([`names`]).
//!
//! | module | what it is |
//! |---|---|
//! | [`sends`], [`receives`], [`completions`] | the log of each queue |
//! | [`ring`], [`counts`] | what they are made of: what a program does for each message takes no memory and little time |
//! | [`queue_pair`], [`behind`], [`process`] | what belongs together |
//! | [`cookie`] | how a completion finds its request |
//! | [`below`] | what is needed of the libibverbs below |
//! | [`told`] | what all processes tell each other then |
//! | [`drain`] | from quiesce to save |
//! | [`serve`] | what came in lent receives finds the program's |
//! | [`names`] | virtual names and real ones |
//! | [`moves`] | those at one port go on elsewhere, the others where they are |
//! | [`faults`], [`canary`] | where something can go wrong; bugs on purpose |
//!
//! What must stay true: the program sees each completion once, in order, none too many; what is done at the peer is never
//! done again; a name that was told to anybody stays good.

pub mod behind;
pub mod below;
pub mod canary;
pub mod completions;
pub mod cookie;
pub mod counts;
pub mod drain;
pub mod faults;
pub mod moves;
pub mod names;
pub mod process;
pub mod queue_pair;
pub mod receives;
pub mod ring;
pub mod sends;
pub mod serve;
pub mod told;

pub use below::Below;
pub use canary::Canary;
pub use completions::Completion;
pub use names::{Name, Names};
pub use process::Process;
