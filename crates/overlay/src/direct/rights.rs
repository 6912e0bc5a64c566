//! What the kernel lets only a privileged process do to a socket: marks, and buffers beyond the system's limit (socket(7), CAP_NET_ADMIN).
//! A process that has given up its rights leaves it to another one, an [`Agent`], which gets the socket itself. Where the system has no marks an
//! agent does in its own way what a mark is for, which is to keep a socket's packets out of the device that catches others'.

use std::{io, sync::OnceLock};

use super::system::{self, AsSocket, BorrowedSocket};

/// What a tunnel's socket asks for in each direction, in bytes: 20 ms at 3 Gbit/s.
pub(super) const TUNNEL_BUFFER: usize = 8 * 1024 * 1024;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// The mark of the process's own packets.
    Mark,
    /// The large buffers of a tunnel, in both directions.
    Buffers,
}

/// Does it in the name of this process. It knows by itself which mark that is.
pub type Agent = dyn Fn(BorrowedSocket<'_>, Right) -> io::Result<()> + Send + Sync;

static AGENT: OnceLock<Box<Agent>> = OnceLock::new();

/// From now on, and for as long as the process lives, `agent` does what this process may not. The first one stays.
pub fn leave_to(agent: Box<Agent>) {
    AGENT.set(agent).unwrap_or_default();
}

/// Marks all packets of a socket.
pub(super) fn mark(socket: &impl AsSocket, mark: u32) -> io::Result<()> {
    match AGENT.get() {
        Some(agent) => agent(system::borrow(socket), Right::Mark),
        None => system::mark(socket, mark),
    }
}

/// Gives a socket as much buffer as a tunnel wants, whatever the system's limit.
pub(super) fn enlarge(socket: &impl AsSocket) -> io::Result<()> {
    match AGENT.get() {
        Some(agent) => agent(system::borrow(socket), Right::Buffers),
        None => force_buffers(socket),
    }
}

/// Gives a socket as much buffer as a tunnel wants, by this process's own rights.
///
/// # Errors
/// The operating system's: without CAP_NET_ADMIN it is not permitted.
pub fn force_buffers(socket: &impl AsSocket) -> io::Result<()> {
    system::force_buffers(socket, TUNNEL_BUFFER)
}
