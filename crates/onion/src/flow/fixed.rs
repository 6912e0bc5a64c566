//! Fixed windows: so many cells before an acknowledgement, so many more for each.
//! Used by [`super::Outgoing`] for circuits and [`super::stream`] for streams. tor-spec "Flow control".

use super::Violation;

/// DATA cells under way on a circuit, at most.
pub const CIRCUIT_WINDOW: u32 = 1000;
/// DATA cells that one SENDME of a circuit acknowledges.
pub const CIRCUIT_INCREMENT: u32 = 100;
/// DATA cells under way on a stream, at most.
pub const STREAM_WINDOW: u32 = 500;
/// DATA cells that one SENDME of a stream acknowledges.
pub const STREAM_INCREMENT: u32 = 50;

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    left: u32,
    size: u32,
    increment: u32,
}

impl Fixed {
    /// The window of a circuit.
    pub fn circuit() -> Self {
        Self::new(CIRCUIT_WINDOW, CIRCUIT_INCREMENT)
    }

    /// The window of a stream.
    pub fn stream() -> Self {
        Self::new(STREAM_WINDOW, STREAM_INCREMENT)
    }

    fn new(size: u32, increment: u32) -> Self {
        Self {
            left: size,
            size,
            increment,
        }
    }

    /// Whether one more cell may leave.
    pub fn may_send(&self) -> bool {
        self.left > 0
    }

    /// A cell has left.
    pub fn sent(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// A SENDME has come.
    ///
    /// # Errors
    /// [`Violation::SendmeTooMany`]: the window would be larger than at the beginning.
    pub fn acknowledged(&mut self) -> Result<(), Violation> {
        let left = self.left.saturating_add(self.increment);
        if left > self.size {
            return Err(Violation::SendmeTooMany);
        }
        self.left = left;
        Ok(())
    }
}
