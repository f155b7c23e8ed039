"""The kernel: an async function becomes an actor with a mailbox, a reference and
exactly one exit an incarnation. Its faces are `actors` and `actors.lowlevel`."""
