//! The bodies of the link handshake: versions, certificates, the challenge and its answer, time and addresses.
//! tor-spec: "Negotiating and initializing connections".

use std::net::IpAddr;

use bytes::BufMut;

use super::{Input, Malformed, short, wide};

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
    /// Random bytes.
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
    /// [`Malformed`] for an odd number of bytes.
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
    /// Reads the body of a CERTS cell. "Any extra bytes at the end of a CERTS cell MUST be ignored."
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
        const MAX_ADDRESSES: usize = 26;
        out.put_u32(self.time);
        match self.other {
            Some(address) => write_address(out, address),
            None => out.put_slice(&[0, 0]),
        }
        let number = self.mine.len().min(MAX_ADDRESSES);
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

/// Two bytes of length, and the value; cut at 65,535.
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

// What an AUTHENTICATE cell of type 3 proves, and over what.
// tor-spec: "Link authentication type 3: Ed25519-SHA256-RFC5705".

const TYPE: [u8; 8] = *b"AUTH0003";

/// The fields of the proof. A responder computes all but the random bytes itself, compares, and checks the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ed25519Authentication {
    /// SHA-256 of the initiator's RSA identity key (CID).
    pub initiator_rsa: [u8; 32],
    /// SHA-256 of the responder's (SID).
    pub responder_rsa: [u8; 32],
    /// The initiator's Ed25519 identity (CID_ED).
    pub initiator_ed25519: [u8; 32],
    /// The responder's (SID_ED).
    pub responder_ed25519: [u8; 32],
    /// SHA-256 of all that the responder sent, up to AUTH_CHALLENGE (SLOG).
    pub responder_log: [u8; 32],
    /// SHA-256 of all that the initiator sent, up to CERTS (CLOG).
    pub initiator_log: [u8; 32],
    /// SHA-256 of the responder's TLS certificate (SCERT).
    pub certificate: [u8; 32],
    /// What the TLS exporter says (TLSSECRETS).
    pub exporter: [u8; 32],
    /// Random bytes (RAND).
    pub random: [u8; 24],
}

impl Ed25519Authentication {
    /// The bytes that are signed, if nothing unknown follows them.
    pub const LEN: usize = 288;

    /// Reads the fields; the bytes that are signed, and the signature, which stands last.
    /// "The server MUST ignore any extra bytes in the signed data after the RAND field."
    ///
    /// # Errors
    /// [`Malformed`] for another type and for what is cut off.
    pub fn parse(authentication: &[u8]) -> Result<(Self, &[u8], [u8; 64]), Malformed> {
        let what = Malformed("AUTHENTICATE of type 3");
        let (signed, signature) = authentication.split_last_chunk::<64>().ok_or(what)?;
        let mut input = Input::new(signed, what.0);
        if input.array()? != TYPE {
            return Err(what);
        }
        let fields = Self {
            initiator_rsa: input.array()?,
            responder_rsa: input.array()?,
            initiator_ed25519: input.array()?,
            responder_ed25519: input.array()?,
            responder_log: input.array()?,
            initiator_log: input.array()?,
            certificate: input.array()?,
            exporter: input.array()?,
            random: input.array()?,
        };
        Ok((fields, signed, *signature))
    }

    /// Writes what is to be signed; the signature follows it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&TYPE);
        let hashes = [
            &self.initiator_rsa,
            &self.responder_rsa,
            &self.initiator_ed25519,
            &self.responder_ed25519,
            &self.responder_log,
            &self.initiator_log,
            &self.certificate,
            &self.exporter,
        ];
        hashes.iter().for_each(|hash| out.put_slice(*hash));
        out.put_slice(&self.random);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn body(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn types_of_certificates_and_of_authentication_are_those_of_the_specification() {
        let ours: Vec<_> = CertType::KNOWN.iter().map(|(kind, _)| kind.0).collect();
        assert_eq!(ours, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(CertType::RSA_IDENTITY.0, 2);
        assert_eq!(CertType::ED25519_SIGNING.0, 4);
        assert_eq!(CertType::ED25519_LINK.0, 5);
        assert_eq!(CertType::ED25519_AUTHENTICATE.0, 6);
        assert_eq!(CertType::RSA_CROSS.0, 7);
        let ours: Vec<_> = AuthType::KNOWN.iter().map(|(kind, _)| kind.0).collect();
        assert_eq!(ours, [1, 3]);
    }

    #[test]
    fn an_odd_number_of_bytes_is_no_list_of_versions() {
        assert_eq!(Versions::parse(&[0, 3, 0, 4]), Ok(Versions(vec![3, 4])));
        assert_eq!(Versions::parse(&[0, 3, 0]), Err(Malformed("VERSIONS")));
    }

    #[test]
    fn the_highest_common_version_is_chosen_and_none_if_there_is_none() {
        assert_eq!(Versions(vec![5, 3, 4, 9]).common(&[4, 5]), Some(5));
        assert_eq!(Versions(vec![3, 4]).common(&[4, 5]), Some(4));
        assert_eq!(Versions(vec![1, 2, 3]).common(&[4, 5]), None);
    }

    #[test]
    fn a_certs_cell_reads_as_specified_and_what_follows_is_ignored() {
        let bytes = [2, 4, 0, 3, 1, 2, 3, 9, 0, 0, 77, 77];
        let certs = Certs::parse(&bytes).unwrap();
        assert_eq!(certs.get(CertType::ED25519_SIGNING), Some(&[1, 2, 3][..]));
        assert_eq!(certs.get(CertType(9)), Some(&[][..]));
        assert_eq!(certs.get(CertType::RSA_CROSS), None);
        assert_eq!(body(|out| certs.write(out)), bytes[..10]);
    }

    #[test]
    fn two_certificates_of_one_type_are_malformed_and_so_is_a_cut_one() {
        for bytes in [&[2, 4, 0, 0, 4, 0, 0][..], &[1, 4, 0, 3, 1, 2], &[1], &[]] {
            assert_eq!(Certs::parse(bytes), Err(Malformed("CERTS")), "{bytes:?}");
        }
    }

    #[test]
    fn a_challenge_reads_as_specified_and_what_follows_is_ignored() {
        let bytes = [&[7; 32][..], &[0, 2, 0, 1, 0, 3, 99]].concat();
        let challenge = AuthChallenge::parse(&bytes).unwrap();
        assert_eq!(challenge.challenge, [7; 32]);
        assert_eq!(
            challenge.methods,
            [
                AuthType::RSA_SHA256_TLSSECRET,
                AuthType::ED25519_SHA256_RFC5705
            ]
        );
        assert_eq!(body(|out| challenge.write(out)), bytes[..38]);
        assert!(AuthChallenge::parse(&bytes[..37]).is_err());
    }

    #[test]
    fn an_ed25519_authentication_has_its_fields_where_the_specification_puts_them() {
        let fields = Ed25519Authentication {
            initiator_rsa: [1; 32],
            responder_rsa: [2; 32],
            initiator_ed25519: [3; 32],
            responder_ed25519: [4; 32],
            responder_log: [5; 32],
            initiator_log: [6; 32],
            certificate: [7; 32],
            exporter: [8; 32],
            random: [9; 24],
        };
        let signed = body(|out| fields.write(out));
        let mut wanted = b"AUTH0003".to_vec();
        (1..=8).for_each(|field| wanted.extend([field; 32]));
        wanted.extend([9; 24]);
        assert_eq!(
            (&signed, signed.len()),
            (&wanted, Ed25519Authentication::LEN)
        );
        let later = [&signed[..], b"later versions"].concat();
        for signed in [&signed, &later] {
            let bytes = [signed, &[0xaa; 64][..]].concat();
            let parsed = Ed25519Authentication::parse(&bytes);
            assert_eq!(parsed, Ok((fields.clone(), &signed[..], [0xaa; 64])));
        }
        let mut other = [&signed[..], &[0; 64]].concat();
        assert!(Ed25519Authentication::parse(&other[1..]).is_err());
        other[7] = b'1';
        assert!(Ed25519Authentication::parse(&other).is_err());
    }

    #[test]
    fn an_authenticate_cell_is_type_length_and_proof() {
        let bytes = [0, 3, 0, 2, 8, 9, 0, 0];
        let wanted = Authenticate {
            method: AuthType::ED25519_SHA256_RFC5705,
            authentication: &[8, 9],
        };
        assert_eq!(Authenticate::parse(&bytes), Ok(wanted));
        assert_eq!(body(|out| wanted.write(out)), bytes[..6]);
        assert!(Authenticate::parse(&bytes[..5]).is_err());
    }

    #[test]
    fn netinfo_reads_as_specified_and_leaves_out_addresses_of_a_wrong_kind_or_length() {
        let bytes = [
            &[0x60, 0, 0, 1][..],
            &[4, 4, 192, 0, 2, 1],
            &[4],
            &[4, 4, 198, 51, 100, 7],
            &[6, 4, 1, 2, 3, 4],
            &[0xf0, 2, 1, 2],
            &[
                6, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            ],
            &[0; 30],
        ]
        .concat();
        let netinfo = Netinfo::parse(&bytes).unwrap();
        assert_eq!(netinfo.time, 0x6000_0001);
        assert_eq!(netinfo.other, Some([192, 0, 2, 1].into()));
        let mine = ["198.51.100.7", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(netinfo.mine, mine);
        assert!(Netinfo::parse(&bytes[..20]).is_err());
        assert_eq!(format!("{netinfo:?}"), "Netinfo { .. }");
    }

    #[test]
    fn netinfo_with_more_addresses_than_fit_still_fits_a_cell() {
        let netinfo = Netinfo {
            time: 0,
            other: Some([0xff; 16].into()),
            mine: vec![[0xee; 16].into(); 300],
        };
        let bytes = body(|out| netinfo.write(out));
        assert!(bytes.len() <= crate::cell::BODY, "{}", bytes.len());
        assert_eq!(Netinfo::parse(&bytes).unwrap().mine.len(), 26);
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from)
        ]
    }

    proptest! {
        #[test]
        fn versions_are_read_back(versions in vec(any::<u16>(), 0..20)) {
            let versions = Versions(versions);
            prop_assert_eq!(Versions::parse(&body(|out| versions.write(out))), Ok(versions));
        }

        #[test]
        fn certificates_are_read_back(entries in vec(vec(any::<u8>(), 0..300), 0..20)) {
            let entries = entries.iter().zip(1..).map(|(bytes, kind)| (CertType(kind), &bytes[..]));
            let certs = Certs(entries.collect());
            let bytes = body(|out| certs.write(out));
            prop_assert_eq!(Certs::parse(&bytes), Ok(certs));
        }

        #[test]
        fn challenges_are_read_back(challenge: [u8; 32], methods in vec(any::<u16>(), 0..20)) {
            let challenge = AuthChallenge { challenge, methods: methods.into_iter().map(AuthType).collect() };
            prop_assert_eq!(AuthChallenge::parse(&body(|out| challenge.write(out))), Ok(challenge));
        }

        #[test]
        fn netinfo_is_read_back(time: u32, other in proptest::option::of(any_address()), mine in vec(any_address(), 0..26)) {
            let netinfo = Netinfo { time, other, mine };
            prop_assert_eq!(Netinfo::parse(&body(|out| netinfo.write(out))), Ok(netinfo));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            drop((Versions::parse(&bytes), Certs::parse(&bytes), AuthChallenge::parse(&bytes), Netinfo::parse(&bytes)));
            drop((Authenticate::parse(&bytes), Ed25519Authentication::parse(&bytes)));
        }
    }
}
