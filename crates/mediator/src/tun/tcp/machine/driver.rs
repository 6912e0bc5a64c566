//! The machine as the flow's task and the table see it: what may be pushed and taken, and how things stand. A part of the machine.

use std::io::IoSlice;

use hoplite_wire::ip::tcp::Segment;
use tokio::time::Instant;

use super::{End, Machine, Phase};
use crate::tun::tcp::sequence::Seq;

impl Machine {
    /// What waits in either direction, in octets of memory; no less than the floor of each.
    pub(in crate::tun::tcp) fn memory(&self) -> usize {
        let floor = self.settings.floor;
        self.receive.memory().max(floor) + self.send.memory().max(floor)
    }

    /// One direction may take so many octets of memory besides what it has, until this is said again; its floor it may take in any case.
    pub(in crate::tun::tcp) fn allow(&mut self, more: usize) {
        let floor = self.settings.floor;
        self.receive
            .limit(floor.max(self.receive.memory().saturating_add(more)));
        self.send
            .limit(floor.max(self.send.memory().saturating_add(more)));
    }

    /// Since when, at least, what is first in either direction has waited: for the overlay to take it, or for the program to acknowledge it.
    pub(in crate::tun::tcp) fn waits_since(&mut self, now: Instant) -> Option<Instant> {
        let both = [self.receive.waits_since(now), self.send.waits_since(now)];
        both.into_iter().flatten().min()
    }

    /// When the program was last heard.
    pub(in crate::tun::tcp) fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// How many octets may be pushed now.
    pub(in crate::tun::tcp) fn room(&self) -> usize {
        match self.phase {
            Phase::Open => self.send.room(self.settings.window, self.stalled),
            _ => 0,
        }
    }

    /// Octets for the program; no more than there is [`Self::room`] for.
    pub(in crate::tun::tcp) fn push(&mut self, octets: &[u8]) {
        self.stalled = false;
        self.send.push(octets);
    }

    /// The overlay has octets and there is no room for them.
    pub(in crate::tun::tcp) fn stall(&mut self, now: Instant) {
        self.stalled = true;
        self.rest(now);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled && self.send.window_closed()
    }

    /// Whether there is room again for what was stalled, or everything is acknowledged that the overlay waits for.
    pub(in crate::tun::tcp) fn may_go_on(&self) -> bool {
        (self.stalled && self.room() > 0) || (self.discarding && self.is_drained())
    }

    /// Whether the program has acknowledged all octets.
    pub(in crate::tun::tcp) fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// Octets that are pushed and wait to leave.
    pub(in crate::tun::tcp) fn unsent(&self) -> usize {
        self.send.unsent()
    }

    /// The overlay has finished.
    pub(in crate::tun::tcp) fn finish(&mut self, now: Instant) {
        self.send.finish();
        self.rest(now);
    }

    /// How many octets wait for the overlay.
    pub(in crate::tun::tcp) fn readable(&self) -> usize {
        self.receive.queue().len()
    }

    /// The first of them; answers with how many slices there are.
    pub(in crate::tun::tcp) fn read<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.receive.queue().slices(slices)
    }

    /// The overlay took so many.
    pub(in crate::tun::tcp) fn consume(&mut self, octets: usize) {
        self.receive.consume(octets);
    }

    /// The overlay takes no more: what the program still sends is forgotten.
    pub(in crate::tun::tcp) fn discard(&mut self) {
        self.discarding = true;
        self.receive.discard();
    }

    /// Whether the program has finished and all of it is taken.
    pub(in crate::tun::tcp) fn read_ended(&self) -> bool {
        self.receive.ended() && self.readable() == 0
    }

    /// Whether the SYN is not answered yet.
    pub(in crate::tun::tcp) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Whether the program has confirmed the connection.
    pub(in crate::tun::tcp) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::TimeWait)
    }

    /// How it ended, once nothing more will happen.
    pub(in crate::tun::tcp) fn ended(&self) -> Option<End> {
        (self.phase == Phase::Closed).then_some(self.end)
    }

    /// Whether a SYN may begin a new connection in the place of this one: RFC 9293 §3.10.7.4, MAY-2, and a program that begins again.
    pub(in crate::tun::tcp) fn gives_way_to(&self, segment: &Segment<'_>) -> bool {
        let newer = self.receive.next().is_before(Seq(segment.sequence));
        match self.phase {
            Phase::Held => Seq(segment.sequence) != self.irs,
            Phase::TimeWait => newer,
            Phase::Closed => true,
            _ => false,
        }
    }
}
