//! What the Snapify paper has: seconds of its tables 3 and 4, on one node with a Xeon Phi.

use super::Way::{self, Local, Nfs, NfsKernel, NfsUser, Scp, SnapifyIo};

/// What a table measures in one direction.
pub struct Table {
    /// What it is called in a program's output.
    pub key: (u8, &'static str),
    /// What it is, for people.
    pub title: &'static str,
    pub ways: &'static [Way],
    /// MiB, and the paper's seconds by each way.
    pub rows: &'static [(u32, &'static [f64])],
}

/// All of them.
pub static TABLES: [Table; 4] = [
    Table {
        key: (3, "write"),
        title: "Table 3: a file is copied from the card to the host",
        ways: &[Scp, Nfs, SnapifyIo],
        rows: &[
            (1, &[0.97, 0.01, 0.03]),
            (64, &[15.07, 3.23, 0.43]),
            (128, &[29.88, 6.36, 0.85]),
            (256, &[57.02, 11.81, 1.67]),
            (512, &[113.71, 20.91, 3.34]),
            (1024, &[224.68, 40.10, 6.76]),
        ],
    },
    Table {
        key: (3, "read"),
        title: "Table 3: a file is copied from the host to the card",
        ways: &[Scp, Nfs, SnapifyIo],
        rows: &[
            (1, &[0.48, 0.01, 0.07]),
            (64, &[14.08, 1.94, 0.53]),
            (128, &[28.30, 3.96, 1.82]),
            (256, &[55.50, 7.95, 3.68]),
            (512, &[111.07, 16.07, 6.17]),
            (1024, &[221.59, 31.06, 9.57]),
        ],
    },
    Table {
        key: (4, "checkpoint"),
        title: "Table 4: a checkpoint is written",
        ways: &[Local, Nfs, NfsKernel, NfsUser, SnapifyIo],
        rows: &[
            (1, &[2.16, 67.64, 1.70, 2.71, 2.76]),
            (64, &[2.38, 71.21, 3.25, 4.81, 2.28]),
            (128, &[2.62, 70.97, 4.30, 7.64, 3.71]),
            (256, &[3.15, 75.67, 7.30, 12.48, 4.59]),
            (512, &[4.12, 80.98, 12.60, 20.98, 6.44]),
            (1024, &[6.34, 87.27, 21.44, 30.47, 9.94]),
        ],
    },
    Table {
        key: (4, "restart"),
        title: "Table 4: a checkpoint is read",
        ways: &[Local, Nfs, SnapifyIo],
        rows: &[
            (1, &[0.577, 1.392, 0.979]),
            (64, &[0.829, 3.547, 1.377]),
            (128, &[0.832, 5.834, 2.066]),
            (256, &[1.255, 8.975, 3.397]),
            (512, &[2.034, 17.613, 4.934]),
            (1024, &[3.732, 32.550, 7.373]),
        ],
    },
];
