//! What the paper says of its Figures 6 to 8. It has no numbers of most bars: what is said of their shape is here.

pub const READ: &str = "The paper: the network is saturated from 16K on.";

pub const AGGREGATION_1M: &str = "The paper: poor with chunks above 256K, which are too few then.";

pub const AGGREGATION_8M: &str = "The paper: best with chunks of 128K.";

pub const AGGREGATION_POOLS: &str =
    "The paper: the pool hardly matters, as long as it has chunks enough.";

pub const AGGREGATION_WRITERS: &str =
    "The paper, by FUSE: at most about 0.80 GB/s, of 16 writers; less of 32.";

pub const NETWORK_POOLS: &str =
    "The paper, by reads: 8 writers saturate the network, with a pool of 8M.";

pub const NETWORK_CHUNKS: &str = "The paper has none of this.";

pub const PIPELINE_CHUNKS: &str =
    "The paper, by FUSE and reads: at most about 0.75 GB/s (8 writers, 128K).";

pub const PIPELINE_POOLS: &str = "The paper: the pool does not matter.";

pub const BOUND: &str = "The paper: the pipeline is bounded by the slower one of both.";

pub const DELIVERY: &str = "The paper measures migrations with it (section V-C).";
