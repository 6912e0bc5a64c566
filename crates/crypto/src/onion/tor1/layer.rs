//! One relay's layer, at the relay's end and at the client's.
//! tor-spec, "Relay cell processing"; the keys' order: "KDF-RFC5869".

use std::fmt;

use zeroize::Zeroizing;

use super::{BODY, Digest, Refused, Seed, hash::Running, stream::Stream};

/// Df, Db, Kf and Kb, one after another.
pub(super) struct Keys(Zeroizing<[u8; 72]>);

impl Keys {
    pub(super) fn draw(seed: &Seed) -> Result<Self, Refused> {
        let mut octets = Zeroizing::new([0; 72]);
        seed.fill(octets.as_mut_slice())?;
        Ok(Self(octets))
    }

    #[cfg(test)]
    pub(super) fn of(octets: &[u8; 72]) -> Self {
        Self(Zeroizing::new(*octets))
    }

    /// Both directions: forward, backward.
    fn directions(&self) -> Result<(Direction, Direction), Refused> {
        let (forward_hash, rest) = self.0.split_first_chunk::<20>().ok_or(Refused::System)?;
        let (backward_hash, rest) = rest.split_first_chunk::<20>().ok_or(Refused::System)?;
        let (forward, rest) = rest.split_first_chunk().ok_or(Refused::System)?;
        let (backward, _) = rest.split_first_chunk().ok_or(Refused::System)?;
        Ok((
            Direction::new(forward_hash, forward)?,
            Direction::new(backward_hash, backward)?,
        ))
    }
}

/// The state of one direction.
struct Direction {
    stream: Stream,
    hash: Running,
}

impl Direction {
    fn new(hash: &[u8; 20], key: &[u8; 16]) -> Result<Self, Refused> {
        Ok(Self {
            stream: Stream::new(key)?,
            hash: Running::new(hash),
        })
    }

    fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        let digest = self.hash.seal(body);
        self.stream.apply(body);
        digest
    }

    fn recognise(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.stream.apply(body);
        self.hash.recognise(body)
    }
}

/// A relay's end of one circuit's layer. Cells must be given in the order in which they came.
pub struct RelayLayer {
    forward: Direction,
    backward: Direction,
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        Self::of(&Keys::draw(seed)?)
    }

    pub(super) fn of(keys: &Keys) -> Result<Self, Refused> {
        let (forward, backward) = keys.directions()?;
        Ok(Self { forward, backward })
    }

    /// Takes the layer off a cell from the client. With a digest: it is for this relay. `None`: it goes on to the next, or, at the last, the
    /// circuit is to be closed.
    pub fn forward(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.forward.recognise(body)
    }

    /// Puts the layer on a cell that came from the next relay.
    pub fn backward(&mut self, body: &mut [u8; BODY]) {
        self.backward.stream.apply(body);
    }

    /// Makes a cell for the client out of a body in the clear: sets its recognized and digest fields and enciphers it.
    pub fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.backward.originate(body)
    }
}

impl fmt::Debug for RelayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayLayer(hidden)")
    }
}

/// The client's end of one relay's layer.
pub(super) struct ClientLayer {
    forward: Direction,
    backward: Direction,
}

impl ClientLayer {
    pub(super) fn new(keys: &Keys) -> Result<Self, Refused> {
        let (forward, backward) = keys.directions()?;
        Ok(Self { forward, backward })
    }

    /// A cell for this relay.
    pub(super) fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.forward.originate(body)
    }

    /// A cell for a relay behind this one.
    pub(super) fn forward(&mut self, body: &mut [u8; BODY]) {
        self.forward.stream.apply(body);
    }

    /// A cell that came: with a digest if this relay said it.
    pub(super) fn backward(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.backward.recognise(body)
    }
}
