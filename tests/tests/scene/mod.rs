//! What the tests of Snapify have in common: a rig, and an offload process in the middle of its work.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use snaprig_coi::{Engine, Process};
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_rig::Rig;
use snaprig_snapify::StepReport;

pub const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
pub const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

/// A rig with an offload process that is in the middle of its work.
pub struct Scene {
    pub rig: Rig,
    pub process: Process,
    pub work: std::thread::JoinHandle<Result<kmeans::Outcome, kmeans::OffloadError>>,
    pub dir: tempfile::TempDir,
}

impl Scene {
    pub fn new(cards: usize) -> Self {
        Self::on(
            Rig::builder()
                .exe(SNAPRIG)
                .cards(cards)
                .start()
                .expect("a rig"),
        )
    }

    pub fn on(rig: Rig) -> Self {
        let engine = Engine::get(rig.dir(), 0).expect("card 1");
        let process = Process::create(&engine, "kmeans", kmeans::SINK.to_vec(), vec![], vec![])
            .expect("an offload process");
        let own = process.clone();
        let work = std::thread::spawn(move || kmeans::run(&own, &Workload::shipped()));
        process.break_at(9, TIMEOUT).expect("it gets to work");
        Self {
            rig,
            process,
            work,
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    pub fn snapshot(&self) -> PathBuf {
        self.dir.path().join("snapshot")
    }

    pub fn engine(&self, index: u16) -> Engine {
        Engine::get(self.rig.dir(), index).expect("a card")
    }

    /// The workload's result, which must be the golden one.
    pub fn finish(self) {
        let outcome = self.work.join().expect("no panic").expect("it finishes");
        assert_eq!(
            outcome.to_text(),
            kmeans::golden(&Workload::shipped()).to_text()
        );
    }
}

/// An observer that does nothing.
pub fn quiet() -> Arc<dyn Fn(&StepReport) + Send + Sync> {
    Arc::new(|_| {})
}
