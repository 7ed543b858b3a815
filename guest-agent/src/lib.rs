//! Programs that run on the card.

pub mod scif;
