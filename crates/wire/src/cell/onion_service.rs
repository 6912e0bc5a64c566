//! What services, clients and relays tell each other about onion services of version 3: how a service has itself introduced, a client introduces
//! itself, and both meet at a relay. rend-spec-v3, "The introduction protocol", "The rendezvous protocol", "Managing streams".
//!
//! Relays read all of it but [`Introduction`] and [`begin`], which client and service encrypt for each other.

use bytes::BufMut;

use super::{Input, Malformed, circuit::LinkSpecifier, short};

/// What a client chooses for a service to find it by at the rendezvous point.
pub const COOKIE: usize = 20;

/// The only kind of key by which services are introduced: Ed25519.
const ED25519: u8 = 2;
/// The extension of ESTABLISH_INTRO with the rates of INTRODUCE2.
const RATES: u8 = 1;
/// Its parameters.
const PER_SECOND: u8 = 1;
const BURST: u8 = 2;
/// More than this no parameter may be.
const MOST: u64 = i32::MAX as u64;

/// The extension of what introduces a client that asks for congestion control, as in a circuit handshake (proposal 324).
const CONGESTION_REQUEST: u8 = 1;
/// The only kind of onion key: X25519, for ntor.
const NTOR: u8 = 1;
/// What introduces a client is padded to this, whatever is in it. C tor makes INTRODUCE1 so long, too.
const INTRODUCTION: usize = 190;

numbers! {
    /// What comes of an INTRODUCE1. rend-spec-v3, "INTRODUCE_ACK cell format".
    pub struct IntroduceStatus(u16) {
        /// It was passed on.
        SUCCESS = 0,
        /// No service is introduced here by that key.
        UNKNOWN = 1,
        /// It cannot be read.
        MALFORMED = 2,
        /// It cannot be passed on: the service does not take more.
        CANT_RELAY = 3,
    }
}

/// How many INTRODUCE2 a service wants at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntroductionRate {
    /// A second, in the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// ESTABLISH_INTRO: a service wants to be introduced here by this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishIntro<'a> {
    /// The key, an Ed25519 one that the service has for this relay alone.
    pub auth_key: [u8; 32],
    /// What the service wants at most; `None`: it leaves that to the relay.
    pub rate: Option<IntroductionRate>,
    /// Binds the message to its circuit: a MAC of `authenticated`.
    pub mac: [u8; 32],
    /// By the key, of a prefix and `signed`.
    pub signature: [u8; 64],
    /// All before the MAC.
    pub authenticated: &'a [u8],
    /// All before the signature's length.
    pub signed: &'a [u8],
}

impl<'a> EstablishIntro<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`], for a key of another kind, too.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "ESTABLISH_INTRO");
        let before = |input: &Input<'_>| {
            let at = data.len().saturating_sub(input.rest().len());
            data.get(..at).unwrap_or_default()
        };
        let auth_key = auth_key(&mut input)?;
        let mut rate = None;
        extensions(&mut input, |kind, value| {
            if kind == RATES {
                rate = read_rate(value)?;
            }
            Ok(())
        })?;
        let authenticated = before(&input);
        let mac = input.array()?;
        let signed = before(&input);
        let signature = input.counted_wide()?.try_into();
        let signature = signature.map_err(|_| input.malformed())?;
        Ok(Self {
            auth_key,
            rate,
            mac,
            signature,
            authenticated,
            signed,
        })
    }

    /// Writes all before the MAC: the MAC, and the signature behind its length of two bytes, follow.
    pub fn write_authenticated(
        auth_key: &[u8; 32],
        rate: Option<IntroductionRate>,
        out: &mut impl BufMut,
    ) {
        put_auth_key(auth_key, out);
        let Some(rate) = rate else {
            return out.put_u8(0);
        };
        out.put_slice(&[1, RATES, 19, 2]);
        for (kind, value) in [(PER_SECOND, rate.per_second), (BURST, rate.burst)] {
            out.put_u8(kind);
            out.put_u64(value.into());
        }
    }
}

/// `None` where it asks for nothing that makes sense: then the service "did not ask".
fn read_rate(value: &[u8]) -> Result<Option<IntroductionRate>, Malformed> {
    let mut input = Input::new(value, "ESTABLISH_INTRO");
    let (mut per_second, mut burst) = (0, 0);
    for _ in 0..input.u8()? {
        let kind = input.u8()?;
        let value = u64::from_be_bytes(input.array()?);
        let to = match kind {
            PER_SECOND => &mut per_second,
            BURST => &mut burst,
            _ => continue,
        };
        *to = u32::try_from(value.min(MOST)).map_err(|_| input.malformed())?;
    }
    let rate = IntroductionRate { per_second, burst };
    Ok((per_second > 0 && burst >= per_second).then_some(rate))
}

/// INTRODUCE1 and INTRODUCE2, which have one form: a client introduces itself to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduce<'a> {
    /// The key of the service at this introduction point.
    pub auth_key: [u8; 32],
    /// For the service.
    pub encrypted: &'a [u8],
}

impl<'a> Introduce<'a> {
    /// Reads it. Extensions of it that nobody knows are passed over.
    ///
    /// # Errors
    /// [`Malformed`], for the version before this one, too.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "INTRODUCE1");
        if input.array::<20>()? != [0; 20] {
            return Err(input.malformed());
        }
        let auth_key = auth_key(&mut input)?;
        extensions(&mut input, |_, _| Ok(()))?;
        let encrypted = input.rest();
        if encrypted.is_empty() {
            return Err(input.malformed());
        }
        Ok(Self {
            auth_key,
            encrypted,
        })
    }

    /// Writes it, without extensions.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_bytes(0, 20);
        put_auth_key(&self.auth_key, out);
        out.put_u8(0);
        out.put_slice(self.encrypted);
    }
}

/// What a client tells a service, encrypted in [`Introduce::encrypted`]: where it waits, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction<'a> {
    /// By which the service finds it at the rendezvous point.
    pub cookie: [u8; COOKIE],
    /// It wishes congestion control between itself and the service.
    pub congestion_control: bool,
    /// The rendezvous point's onion key, X25519.
    pub onion_key: [u8; 32],
    /// Who and where the rendezvous point is.
    pub specifiers: Vec<LinkSpecifier<'a>>,
}

impl<'a> Introduction<'a> {
    /// Reads it; extensions that nobody knows, and padding, are passed over.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off and for an onion key of another kind.
    pub fn parse(plaintext: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(plaintext, "introduction of a client");
        let cookie = input.array()?;
        let mut congestion_control = false;
        extensions(&mut input, |kind, _| {
            congestion_control |= kind == CONGESTION_REQUEST;
            Ok(())
        })?;
        if input.u8()? != NTOR {
            return Err(input.malformed());
        }
        let onion_key = input.counted_wide()?.try_into();
        let onion_key = onion_key.map_err(|_| input.malformed())?;
        let mut specifiers = Vec::new();
        for _ in 0..input.u8()? {
            specifiers.push(LinkSpecifier::read(&mut input)?);
        }
        Ok(Self {
            cookie,
            congestion_control,
            onion_key,
            specifiers,
        })
    }

    /// Writes it, padded: 255 specifiers at most.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(INTRODUCTION);
        out.put_slice(&self.cookie);
        out.put_u8(u8::from(self.congestion_control));
        if self.congestion_control {
            out.put_slice(&[CONGESTION_REQUEST, 0]);
        }
        out.put_slice(&[NTOR, 0, 32]);
        out.put_slice(&self.onion_key);
        let number = short(self.specifiers.len());
        out.put_u8(number);
        let specifiers = self.specifiers.iter().take(number.into());
        specifiers.for_each(|specifier| specifier.write(&mut out));
        out.resize(out.len().max(INTRODUCTION), 0);
        out
    }
}

/// The port of a BEGIN to an onion service, which "should ignore all other fields".
///
/// # Errors
/// [`Malformed`] for what has no port.
pub fn begin(data: &[u8]) -> Result<u16, Malformed> {
    let mut input = Input::new(data, "BEGIN");
    let text = std::str::from_utf8(input.until_zero()?).map_err(|_| input.malformed())?;
    let port = text.rsplit_once(':').map(|(_, port)| port.parse());
    match port {
        Some(Ok(port @ 1..)) => Ok(port),
        _ => Err(input.malformed()),
    }
}

/// Writes BEGIN to a port of an onion service: with no name and no flags.
pub fn write_begin(port: u16, out: &mut impl BufMut) {
    out.put_u8(b':');
    out.put_slice(port.to_string().as_bytes());
    out.put_u8(0);
}

impl IntroduceStatus {
    /// Reads INTRODUCE_ACK. What stands behind the status is passed over.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        Input::new(data, "INTRODUCE_ACK").u16().map(Self)
    }

    /// Writes INTRODUCE_ACK.
    pub fn write(self, out: &mut impl BufMut) {
        out.put_u16(self.0);
        out.put_u8(0);
    }
}

/// RENDEZVOUS1: a service wants to be joined to the client that waits here by this cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous1<'a> {
    /// The client's.
    pub cookie: [u8; COOKIE],
    /// For the client: what RENDEZVOUS2 carries.
    pub handshake: &'a [u8],
}

impl<'a> Rendezvous1<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RENDEZVOUS1");
        Ok(Self {
            cookie: input.array()?,
            handshake: input.rest(),
        })
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.cookie);
        out.put_slice(self.handshake);
    }
}

/// Reads ESTABLISH_RENDEZVOUS: a client wants to be found here by this cookie.
///
/// # Errors
/// [`Malformed`].
pub fn establish_rendezvous(data: &[u8]) -> Result<[u8; COOKIE], Malformed> {
    let cookie = data.try_into();
    cookie.map_err(|_| Malformed("ESTABLISH_RENDEZVOUS"))
}

fn auth_key(input: &mut Input<'_>) -> Result<[u8; 32], Malformed> {
    if input.u8()? != ED25519 {
        return Err(input.malformed());
    }
    let key = input.counted_wide()?.try_into();
    key.map_err(|_| input.malformed())
}

fn put_auth_key(key: &[u8; 32], out: &mut impl BufMut) {
    out.put_slice(&[ED25519, 0, 32]);
    out.put_slice(key);
}

fn extensions(
    input: &mut Input<'_>,
    mut each: impl FnMut(u8, &[u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for _ in 0..input.u8()? {
        let kind = input.u8()?;
        each(kind, input.counted()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: IntroductionRate = IntroductionRate {
        per_second: 25,
        burst: 200,
    };

    fn establish(rate: Option<IntroductionRate>) -> Vec<u8> {
        let mut out = Vec::new();
        EstablishIntro::write_authenticated(&[7; 32], rate, &mut out);
        out.extend([8; 32]);
        out.extend([0, 64]);
        out.extend([9; 64]);
        out
    }

    #[test]
    fn what_is_written_is_read_and_nothing_that_is_cut_off() {
        for rate in [None, Some(RATE)] {
            let bytes = establish(rate);
            let read = EstablishIntro::parse(&bytes).expect("reads");
            assert_eq!((read.auth_key, read.rate), ([7; 32], rate));
            assert_eq!((read.mac, read.signature), ([8; 32], [9; 64]));
            assert_eq!(read.authenticated.len() + 32, read.signed.len());
            assert_eq!(read.signed.len() + 66, bytes.len());
            for end in 0..bytes.len() {
                EstablishIntro::parse(&bytes[..end]).expect_err("cut off");
            }
        }
        let introduce = Introduce {
            auth_key: [1; 32],
            encrypted: b"x",
        };
        let mut bytes = Vec::new();
        introduce.write(&mut bytes);
        assert_eq!(Introduce::parse(&bytes), Ok(introduce));
        for end in 0..bytes.len() {
            Introduce::parse(&bytes[..end]).expect_err("cut off");
        }
    }

    /// rend-spec-v3, appendix G.1.
    const PUBLISHED: [u8; 123] = *b"\x6b\xd3\x64\xc1\x26\x38\xdd\x5c\x3b\xe2\x3d\x76\xac\xa0\x5b\x04\xe6\xce\x93\x2c\x01\x01\x00\
        \x01\x00\x20\x0d\xe6\x13\x0e\x4f\xca\xc4\xed\xda\x24\xe2\x12\x20\xcc\x3e\xad\xae\x40\x3e\xf6\xb7\xd1\x1c\x82\x73\xac\
        \x71\x90\x8d\xe5\x65\x45\x03\x00\x06\x7f\x00\x00\x01\x13\x89\x02\x14\xf8\x23\xc4\xf8\xcc\x08\x5c\x79\x2e\x0a\xee\
        \x02\x83\xfe\x00\xad\x75\x20\xb3\x7d\x03\x20\x72\x8d\x5d\xf3\x9b\x7b\x70\x77\xa0\x11\x8a\x90\x0f\xf4\x45\x6c\x38\
        \x2f\x00\x41\x30\x0a\xcf\x9c\x58\xe5\x1c\x39\x27\x95\xef\x87";

    #[test]
    fn the_published_introduction_is_read_and_written_again() {
        let read = Introduction::parse(&PUBLISHED).expect("reads");
        assert!(read.congestion_control);
        assert_eq!(read.specifiers.len(), 3);
        let address = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 5001);
        assert_eq!(read.specifiers[0], LinkSpecifier::Ipv4(address));
        let written = read.write();
        assert_eq!(written[..PUBLISHED.len()], PUBLISHED);
        assert_eq!(written[PUBLISHED.len()..], [0; 190 - 123]);
        for end in 0..PUBLISHED.len() {
            Introduction::parse(&PUBLISHED[..end]).expect_err("cut off");
        }
    }

    proptest::proptest! {
        #[test]
        fn introductions_are_read_back(
            cookie: [u8; COOKIE], congestion_control: bool, onion_key: [u8; 32], port: u16, unknown: [u8; 7],
            identities in proptest::collection::vec(proptest::prelude::any::<[u8; 32]>(), 0..3),
        ) {
            let address = std::net::SocketAddrV4::new([192, 0, 2, 1].into(), port);
            let mut specifiers = vec![LinkSpecifier::Ipv4(address), LinkSpecifier::Unknown { kind: 9, value: &unknown }];
            specifiers.extend(identities.iter().map(|identity| LinkSpecifier::Ed25519(*identity)));
            let introduction = Introduction { cookie, congestion_control, onion_key, specifiers };
            let written = introduction.write();
            proptest::prop_assert_eq!(Introduction::parse(&written), Ok(introduction));
        }

        #[test]
        fn a_port_is_read_back_whatever_name_stands_before_it(port in 1u16.., name in "[a-z.:]{0,9}") {
            let mut data = Vec::new();
            write_begin(port, &mut data);
            proptest::prop_assert_eq!(begin(&data), Ok(port));
            let named = [name.as_bytes(), &data, b"flags"].concat();
            proptest::prop_assert_eq!(begin(&named), Ok(port));
        }
    }

    #[test]
    fn a_begin_without_a_port_is_malformed() {
        for data in [
            &b":80"[..],
            b"80\0",
            b":\0",
            b":0\0",
            b":65536\0",
            b":-1\0",
            b"",
            b"\xff:80\0",
        ] {
            begin(data).expect_err("no port");
        }
    }

    #[test]
    fn rates_that_make_no_sense_are_none() {
        for (per_second, burst) in [(0, 0), (0, 5), (6, 5)] {
            let bytes = establish(Some(IntroductionRate { per_second, burst }));
            assert_eq!(EstablishIntro::parse(&bytes).expect("reads").rate, None);
        }
        let mut value = vec![3, 9];
        value.extend(7u64.to_be_bytes());
        for (kind, number) in [(PER_SECOND, u64::MAX), (BURST, u64::MAX)] {
            value.push(kind);
            value.extend(number.to_be_bytes());
        }
        let read = read_rate(&value).expect("reads").expect("rates");
        let most = (1 << 31) - 1;
        assert_eq!((read.per_second, read.burst), (most, most));
    }

    #[test]
    fn an_introduction_to_a_service_of_the_version_before_is_malformed() {
        let mut bytes = vec![1; 20];
        bytes.extend([ED25519, 0, 32]);
        bytes.extend([0; 40]);
        Introduce::parse(&bytes).expect_err("another version");
        Introduce::parse(&[0; 60]).expect_err("another kind of key");
    }
}
