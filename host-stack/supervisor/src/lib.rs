//! Supervision of trees of processes: launches them, takes checkpoints of them over time, restarts and migrates them.
//!
//! ```text
//! launch:      supervisor --fork, exec--> program            the supervisor waits, and answers commands
//! checkpoint:  supervisor: freeze (ptrace) --> describe --> write pages --> let go
//! restart:     supervisor in namespaces of its own --> files --> processes with the numbers that they had
//!              --> memory, threads (ptrace) --> let go
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `supervisor` | the parent of a tree: its loop, its commands, its end |
//! | `client` | a supervisor from outside |
//! | `control` | commands to a supervisor, and its replies |
//! | `checkpoint`, `precopy` | one checkpoint, step by step; what is copied while the tree runs |
//! | `schedule` | when a checkpoint is due that nobody has asked for |
//! | `adopted` | one checkpoint of a tree that nobody supervises |
//! | `again`, `together` | restarts of a tree, and of a job |
//! | `job`, `member` | trees that are checkpointed together; a supervisor as one of them |
//! | `migrate` | a tree moves to another supervisor |
//! | `moving` | a member of a job moves, while all others stay |
//! | `plugins` | what programs take down themselves before a checkpoint |
//! | [`process`] | a supervisor's process, for programs |
//! | `preload` | libraries that are loaded into programs which do not know of them |
//! | `signals` | what a supervisor hears from the kernel |
//!
//! What must stay true: whatever goes wrong with a checkpoint, the tree runs on as it was.

mod adopted;
mod again;
mod checkpoint;
mod client;
mod control;
pub mod faults;
mod job;
mod member;
mod migrate;
mod moving;
mod plugins;
mod precopy;
mod preload;
pub mod process;
mod schedule;
mod signals;
mod supervisor;
mod together;

pub use snaprig_ckpt_image::interval::Policy;
pub use snaprig_resources::error::{Error, Result, chain};
pub use snaprig_resources::event::{Event, Observer, Reporter};

pub use self::{
    adopted::dump_adopted,
    again::restart,
    checkpoint::{Copied, Mode, Pause},
    client::{Ckpt, CkptBuilder, CkptError},
    control::{Dumped, Reply, Request, Running, Status, ask},
    job::{
        Job, JobDump, JobDumped, JobMember, JobStatus, Moved, Settings, coordinate, dump_job,
        forget, job_status,
    },
    migrate::{Migrated, Target, receive},
    moving::{
        inherit,
        way::{Copying, Pipelined, Strategy},
    },
    schedule::Schedule,
    supervisor::{Options, Program, launch, launch_in},
    together::restart_job,
};
