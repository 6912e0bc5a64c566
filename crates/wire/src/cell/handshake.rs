//! The bodies of the link handshake: versions, certificates, the challenge and its answer, time and addresses.
//! `link::channel` speaks them, `crypto::onion` checks them. tor-spec: "Negotiating and initializing connections".

use std::net::IpAddr;

use bytes::BufMut;

use super::{
    Malformed,
    input::{Input, short, wide},
};

mod authentication;
mod padding;

pub use authentication::Ed25519Authentication;
pub use padding::PaddingNegotiate;

numbers! {
    /// What a certificate of a CERTS cell is. tor-spec: "CERTS cells".
    pub struct CertType(u8) {
        /// X.509: the TLS key, by the RSA identity.
        RSA_LINK = 1,
        /// X.509: the RSA identity, by itself.
        RSA_IDENTITY = 2,
        /// X.509: the key for RSA authentication, by the RSA identity.
        RSA_AUTHENTICATE = 3,
        /// Ed25519 signing key, by the Ed25519 identity.
        ED25519_SIGNING = 4,
        /// The TLS certificate, by the signing key.
        ED25519_LINK = 5,
        /// The key for authentication, by the signing key.
        ED25519_AUTHENTICATE = 6,
        /// The Ed25519 identity, by the RSA identity.
        RSA_CROSS = 7,
    }
}

numbers! {
    /// How an initiator proves who it is. tor-spec: "AUTHENTICATE cells".
    pub struct AuthType(u16) {
        /// With an RSA key and TLS secrets; not spoken here.
        RSA_SHA256_TLSSECRET = 1,
        /// With an Ed25519 key and the exporter of RFC 5705.
        ED25519_SHA256_RFC5705 = 3,
    }
}

/// VERSIONS: the link protocols that somebody speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions(pub Vec<u16>);

/// CERTS: certificates by type, at most one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certs<'a>(pub Vec<(CertType, &'a [u8])>);

/// AUTH_CHALLENGE: what to sign, and in which ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthChallenge {
    /// Random octets.
    pub challenge: [u8; 32],
    /// What the responder accepts.
    pub methods: Vec<AuthType>,
}

/// AUTHENTICATE: the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authenticate<'a> {
    /// Which one.
    pub method: AuthType,
    /// For [`AuthType::ED25519_SHA256_RFC5705`] an [`Ed25519Authentication`].
    pub authentication: &'a [u8],
}

/// NETINFO: what somebody thinks of time and addresses. Addresses of unknown type or of a wrong length are left out.
#[derive(Clone, PartialEq, Eq)]
pub struct Netinfo {
    /// Seconds since 1970; "clients SHOULD send 0".
    pub time: u32,
    /// The receiver's address, as the sender sees it.
    pub other: Option<IpAddr>,
    /// The sender's addresses.
    pub mine: Vec<IpAddr>,
}

impl Versions {
    /// Reads the body of a VERSIONS cell.
    ///
    /// # Errors
    /// [`Malformed`] for an odd number of octets.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "VERSIONS");
        let mut versions = Vec::new();
        while !input.is_empty() {
            versions.push(input.u16()?);
        }
        Ok(Self(versions))
    }

    /// Writes the body.
    pub fn write(&self, out: &mut impl BufMut) {
        self.0.iter().for_each(|version| out.put_u16(*version));
    }

    /// "The highest number contained both in the VERSIONS cell they sent and in the versions cell they received."
    pub fn common(&self, ours: &[u16]) -> Option<u16> {
        let both = self.0.iter().filter(|version| ours.contains(version));
        both.copied().max()
    }
}

impl<'a> Certs<'a> {
    /// Reads the body of a CERTS cell. "Any extra octets at the end of a CERTS cell MUST be ignored."
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for two certificates of one type.
    pub fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "CERTS");
        let mut certs = Self(Vec::new());
        for _ in 0..input.u8()? {
            let kind = CertType(input.u8()?);
            if certs.get(kind).is_some() {
                return Err(input.malformed());
            }
            certs.0.push((kind, input.counted_wide()?));
        }
        Ok(certs)
    }

    /// Writes the body: 255 certificates at most.
    pub fn write(&self, out: &mut impl BufMut) {
        let number = short(self.0.len());
        out.put_u8(number);
        for (kind, certificate) in self.0.iter().take(number.into()) {
            out.put_u8(kind.0);
            put_wide(out, certificate);
        }
    }

    /// The certificate of a type.
    pub fn get(&self, kind: CertType) -> Option<&'a [u8]> {
        let found = self.0.iter().find(|(this, _)| *this == kind);
        found.map(|(_, certificate)| *certificate)
    }
}

impl AuthChallenge {
    /// Reads the body of an AUTH_CHALLENGE cell. "Initiators MUST ignore unexpected bytes at the end."
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "AUTH_CHALLENGE");
        let challenge = input.array()?;
        let methods = (0..input.u16()?).map(|_| input.u16().map(AuthType));
        Ok(Self {
            challenge,
            methods: methods.collect::<Result<_, _>>()?,
        })
    }

    /// Writes the body.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.challenge);
        let number = wide(self.methods.len());
        out.put_u16(number);
        let methods = self.methods.iter().take(number.into());
        methods.for_each(|method| out.put_u16(method.0));
    }
}

impl<'a> Authenticate<'a> {
    /// Reads the body of an AUTHENTICATE cell. "Responders MUST ignore extra bytes at the end."
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "AUTHENTICATE");
        Ok(Self {
            method: AuthType(input.u16()?),
            authentication: input.counted_wide()?,
        })
    }

    /// Writes the body.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u16(self.method.0);
        put_wide(out, self.authentication);
    }
}

impl Netinfo {
    /// Reads the body of a NETINFO cell. "Implementations MUST ignore unexpected bytes at the end of the cell."
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "NETINFO");
        let time = input.u32()?;
        let other = read_address(&mut input)?;
        let mut mine = Vec::new();
        for _ in 0..input.u8()? {
            mine.extend(read_address(&mut input)?);
        }
        Ok(Self { time, other, mine })
    }

    /// Writes the body: 26 addresses at most, so that it fits a cell.
    pub fn write(&self, out: &mut impl BufMut) {
        const MOST: usize = 26;
        out.put_u32(self.time);
        match self.other {
            Some(address) => write_address(out, address),
            None => out.put_slice(&[0, 0]),
        }
        let number = self.mine.len().min(MOST);
        out.put_u8(short(number));
        let mine = self.mine.iter().take(number);
        mine.for_each(|address| write_address(out, *address));
    }
}

/// "If the ALEN value is wrong for the given ATYPE value, then the provided address should be ignored."
fn read_address(input: &mut Input<'_>) -> Result<Option<IpAddr>, Malformed> {
    let kind = input.u8()?;
    let value = input.counted()?;
    Ok(match kind {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    })
}

fn write_address(out: &mut impl BufMut, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => {
            out.put_slice(&[4, 4]);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_slice(&[6, 16]);
            out.put_slice(&ip.octets());
        }
    }
}

/// Two octets of length, and the value; cut at 65,535.
fn put_wide(out: &mut impl BufMut, value: &[u8]) {
    let length = wide(value.len());
    out.put_u16(length);
    out.put_slice(value.get(..length.into()).unwrap_or(value));
}

/// Addresses stay out of every log.
impl std::fmt::Debug for Netinfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netinfo").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
