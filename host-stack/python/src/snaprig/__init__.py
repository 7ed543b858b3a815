"""Fabrics, rigs and checkpoints for programs under test.

=====================  ===========================================================
`Fabric`               InfiniBand HCAs, and what breaks them
`Rig`                  coprocessor cards, and what breaks them
`Ckpt`                 a program that is checkpointed, killed, restarted, migrated
`campaign`             thousands of faults in simulation
`doctor`               what this host offers
`wait_for_listener`    a program listens, so that its peer can start
`Error`                what went wrong, and what the program said
=====================  ===========================================================

Each of the first three is a context manager: what it stands for is there while the context is
open, and with it ends everything that was started in it, also when a test fails or this process is
killed. Any number can be open side by side.

pytest finds the fixtures of `snaprig.pytest_plugin` by itself.
"""

from snaprig._campaign import campaign
from snaprig._doctor import doctor
from snaprig._listening import wait_for_listener
from snaprig._program import Error, program
from snaprig.ckpt import Ckpt
from snaprig.fabric import Fabric, Node
from snaprig.rig import Card, Rig

__all__ = [
    "Card",
    "Ckpt",
    "Error",
    "Fabric",
    "Node",
    "Rig",
    "campaign",
    "doctor",
    "program",
    "wait_for_listener",
]
