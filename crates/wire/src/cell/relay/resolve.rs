//! RESOLVE and RESOLVED: a name's addresses, or an address's name. tor-spec: "Remote hostname lookup".

use std::{fmt, net::IpAddr};

use bytes::BufMut;

use crate::cell::{
    Malformed,
    input::{Input, short},
};

const HOSTNAME: u8 = 0x00;
const IPV4: u8 = 0x04;
const IPV6: u8 = 0x06;
const TRANSIENT: u8 = 0xf0;
const PERMANENT: u8 = 0xf1;

/// What is asked for: a host name, or a name under in-addr.arpa or ip6.arpa. Not checked any further here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Resolve<'a>(pub &'a str);

/// The answers: an error stands alone; IPv4 addresses come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved<'a>(pub Vec<Answer<'a>>);

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// What it is.
    pub value: Value<'a>,
    /// For how many seconds it may be kept.
    pub seconds: u32,
}

/// What an answer says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A name: up to 255 octets, unchecked.
    Name(&'a [u8]),
    /// An address.
    Ip(IpAddr),
    /// An error that may pass.
    Transient,
    /// An error that stays.
    Permanent,
    /// Something else, or an address of a wrong length: not to be looked at.
    Unknown {
        /// Its type.
        kind: u8,
        /// Its value: up to 255 octets.
        value: &'a [u8],
    },
}

impl<'a> Resolve<'a> {
    /// Reads a RESOLVE message.
    ///
    /// # Errors
    /// [`Malformed`] without an end, without a name, and for one that is no text or too long for any.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RESOLVE");
        let name = input.until_zero()?;
        let text = std::str::from_utf8(name).map_err(|_| input.malformed())?;
        let fits = (1..=255).contains(&text.len());
        fits.then_some(Self(text)).ok_or(Malformed("RESOLVE"))
    }

    /// Writes the message: the name up to its first zero, if there were one.
    pub fn write(&self, out: &mut impl BufMut) {
        let name = self.0.split('\0').next().unwrap_or_default();
        out.put_slice(name.as_bytes());
        out.put_u8(0);
    }
}

impl<'a> Resolved<'a> {
    /// Reads a RESOLVED message.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for an error beside another answer.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RESOLVED");
        let mut answers = Vec::new();
        while !input.is_empty() {
            answers.push(Answer::read(&mut input)?);
        }
        let errors = answers.iter().filter(|answer| answer.is_error()).count();
        match errors == 0 || answers.len() == 1 {
            true => Ok(Self(answers)),
            false => Err(input.malformed()),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        self.0.iter().for_each(|answer| answer.write(out));
    }
}

impl<'a> Answer<'a> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let kind = input.u8()?;
        let value = Value::of(kind, input.counted()?);
        let seconds = input.u32()?;
        Ok(Self { value, seconds })
    }

    fn write(&self, out: &mut impl BufMut) {
        match self.value {
            Value::Name(name) => put(out, HOSTNAME, name),
            Value::Ip(IpAddr::V4(ip)) => put(out, IPV4, &ip.octets()),
            Value::Ip(IpAddr::V6(ip)) => put(out, IPV6, &ip.octets()),
            Value::Transient => put(out, TRANSIENT, b"Error resolving hostname"),
            Value::Permanent => put(out, PERMANENT, b"Error resolving hostname"),
            Value::Unknown { kind, value } => put(out, kind, value),
        }
        out.put_u32(self.seconds);
    }

    /// Whether it says that there is no answer.
    pub const fn is_error(&self) -> bool {
        matches!(self.value, Value::Transient | Value::Permanent)
    }
}

impl<'a> Value<'a> {
    fn of(kind: u8, value: &'a [u8]) -> Self {
        let ip = match kind {
            HOSTNAME => return Self::Name(value),
            TRANSIENT => return Self::Transient,
            PERMANENT => return Self::Permanent,
            IPV4 => <[u8; 4]>::try_from(value).map(IpAddr::from).ok(),
            IPV6 => <[u8; 16]>::try_from(value).map(IpAddr::from).ok(),
            _ => None,
        };
        ip.map_or(Self::Unknown { kind, value }, Self::Ip)
    }
}

fn put(out: &mut impl BufMut, kind: u8, value: &[u8]) {
    let length = short(value.len());
    out.put_slice(&[kind, length]);
    out.put_slice(value.get(..length.into()).unwrap_or(value));
}

/// Names stay out of every log.
impl fmt::Debug for Resolve<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolve(hidden)")
    }
}

/// So do addresses.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name(_) => "Name(hidden)",
            Self::Ip(_) => "Ip(hidden)",
            Self::Transient => "Transient",
            Self::Permanent => "Permanent",
            Self::Unknown { .. } => "Unknown",
        })
    }
}
