//! RDMA, in a program that is built without it: nobody ever has a device.

use std::sync::Arc;

use super::{
    agree::{End, Side},
    connection::{Alive, Node, Piece},
    memory::Memory,
    transport::Port,
};

#[derive(Debug)]
pub enum Device {}

#[derive(Debug)]
pub enum Pair {}

#[derive(Debug)]
pub enum Chunks {}

#[derive(Debug)]
pub enum Thread {}

impl Device {
    pub fn open(_: &Port, _: &Arc<Memory>, _: &[Side]) -> Result<Arc<Self>, String> {
        Err("this program is built without it (feature `rdma` of snaprig-ppmr)".into())
    }
}

impl Pair {
    pub fn new(device: &Arc<Device>, _: Side) -> Result<Self, String> {
        match **device {}
    }

    pub fn end(&self) -> End {
        match *self {}
    }

    pub fn connect(self, _: &End) -> Result<Self, String> {
        match self {}
    }

    pub fn probe(self) -> Result<Self, String> {
        match self {}
    }
}

impl Chunks {
    pub fn new(pair: Pair) -> std::io::Result<(Self, Thread)> {
        match pair {}
    }

    pub fn pull(&self, _: Piece) -> bool {
        match *self {}
    }

    pub fn put(&self, _: Piece) -> bool {
        match *self {}
    }

    pub fn end(&self) {
        match *self {}
    }
}

impl Thread {
    pub fn start<N: Node>(self, _: &Arc<Alive<N>>) {
        match self {}
    }
}
