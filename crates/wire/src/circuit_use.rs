//! What circuits are for, and how they fare: what those who build circuits tell those who choose their relays. Nothing of it travels.

/// What a circuit of an onion service is for: by it go how many relays protect it. rend-spec-v3; proposals 292 and 333.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePurpose {
    /// A client has the service come there.
    ClientRendezvous,
    /// A client introduces itself.
    ClientIntroduction,
    /// A client looks for a descriptor.
    ClientHsDir,
    /// A service goes to meet a client.
    ServiceRendezvous,
    /// A service is introduced there.
    ServiceIntroduction,
    /// A service publishes its descriptor.
    ServiceHsDir,
}

/// How a circuit fares whose first relay has answered. One fares in several ways, one after another. path-spec "Detecting route manipulation by Guard
/// nodes".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitFate {
    /// All relays have answered.
    Built,
    /// A relay has ended it before, or lost the channel, or it did not come about in the longest time that any takes.
    NotBuilt,
    /// A relay has ended it after it was built, and before it was used.
    Collapsed,
    /// Its last relay has answered what it was asked.
    Used,
    /// The same after its last relay was asked for something, and before that has answered; or no answer came in the longest time that any takes.
    NotUsed,
}
