//! BEGIN: opens a stream to a target. tor-spec: "Opening streams and transferring data".

use bytes::BufMut;

use crate::{
    Target,
    cell::{Malformed, input::Input},
};

/// Where a stream is to go, and which addresses will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Where to; in lower case on the wire.
    pub target: Target,
    /// Which addresses will do.
    pub flags: Flags,
}

/// Which addresses of a name will do. Other bits "clients MUST NOT set", "servers MUST ignore".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// IPv6 will do.
    pub const IPV6_OKAY: Self = Self(1);
    /// IPv4 will not do.
    pub const IPV4_NOT_OKAY: Self = Self(2);
    /// IPv6 rather than IPv4.
    pub const IPV6_PREFERRED: Self = Self(4);

    /// Whether all of `others` are set.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl Begin {
    /// Reads a BEGIN message. Flags that are missing are not set.
    ///
    /// # Errors
    /// [`Malformed`] for what is no target.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "BEGIN");
        let text = std::str::from_utf8(input.until_zero()?).map_err(|_| input.malformed())?;
        let target = text.parse().map_err(|_| input.malformed())?;
        let flags = Flags(input.u32().unwrap_or(0));
        Ok(Self { target, flags })
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(self.target.to_string().as_bytes());
        out.put_u8(0);
        out.put_u32(self.flags.0);
    }
}
