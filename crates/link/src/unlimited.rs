//! No congestion control: what a tunnel carries controls itself, and two controllers in one path hinder each other.
//! Used by [`crate::Config`] for [`crate::Congestion::Off`].

use std::{any::Any, sync::Arc, time::Instant};

use quinn::congestion::{Controller, ControllerFactory};

/// Octets in flight: more than any path holds, and above `u32::MAX`, so that the QUIC stack does not pace either.
const WINDOW: u64 = 1 << 40;

/// A window that never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unlimited;

impl ControllerFactory for Unlimited {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for Unlimited {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
