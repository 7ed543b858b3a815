//! The host's ends of a program's standard input and output.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
};

use snaprig_card_driver::{
    file::{Cx, Description, File},
    wait::SysResult,
};

/// Standard output: bytes go to a function of the host.
pub struct Output {
    sink: Mutex<Sink>,
}

type Sink = Box<dyn FnMut(&[u8]) + Send>;

impl Output {
    /// Output that is handed to `sink` as it is written.
    pub fn new(sink: impl FnMut(&[u8]) + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            sink: Mutex::new(Box::new(sink)),
        })
    }
}

impl File for Output {
    fn write(&self, _cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        (self.sink.lock().unwrap_or_else(PoisonError::into_inner))(data);
        Ok(data.len())
    }

    fn describe(&self) -> Description {
        Description::Console
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Standard input that is at its end.
pub struct Input;

impl Input {
    /// Input with nothing in it.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self)
    }
}

impl File for Input {
    fn read(&self, _cx: &mut Cx, _max: usize) -> SysResult<Vec<u8>> {
        Ok(Vec::new())
    }

    fn describe(&self) -> Description {
        Description::Console
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
