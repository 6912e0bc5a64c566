//! What somebody shows as a bearer, and what an identity provider publishes: nothing stops the reader, nobody's word alone is anybody's account, and
//! whatever a provider signs is an account with a name or none.
#![no_main]

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_tokens::{BearerRules, KeySet, keys_uri};
use libfuzzer_sys::fuzz_target;
use ring::signature::{Ed25519KeyPair, KeyPair};

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://login.test";

static PROVIDER: LazyLock<Ed25519KeyPair> =
    LazyLock::new(|| Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key"));
static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
    let x = URL_SAFE_NO_PAD.encode(PROVIDER.public_key());
    let key = |kid| format!(r#"{{"kty": "OKP", "crv": "Ed25519", "kid": "{kid}", "x": "{x}"}}"#);
    let set = format!(r#"{{"keys": [{}, {}]}}"#, key("a"), key("b"));
    KeySet::parse(set.as_bytes()).expect("keys")
});
static RULES: LazyLock<[BearerRules; 2]> = LazyLock::new(|| {
    let plain = BearerRules {
        issuer: ISSUER.into(),
        audience: "hoplite".into(),
        account: "sub".into(),
        required: None,
        skew: 60,
    };
    let strict = BearerRules {
        account: "/person/id".into(),
        required: Some(("/access/roles".into(), "relays".into())),
        ..plain.clone()
    };
    [plain, strict]
});

fuzz_target!(|input: &[u8]| {
    let shown = |keys: &KeySet, bearer: &[u8]| {
        let holders = RULES.iter().map(|rules| rules.holder(keys, bearer, NOW));
        holders.filter_map(Result::ok).inspect(|holder| {
            assert!((1..=255).contains(&holder.name.len()));
        }).count()
    };
    assert_eq!(shown(&KEYS, input), 0, "nobody has signed it");
    // A header of somebody's own, whose signature is right if it says how the key signs; and claims of his.
    let head = br#"{"alg": "EdDSA", "kid": "a"}"#;
    for [header, claims] in [[head, input], [input, br#"{"iss": "https://login.test"}"#]] {
        let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature = URL_SAFE_NO_PAD.encode(PROVIDER.sign(signed.as_bytes()));
        shown(&KEYS, format!("{signed}.{signature}").as_bytes());
        let other = URL_SAFE_NO_PAD.encode([1; 64]);
        let other = shown(&KEYS, format!("{signed}.{other}").as_bytes());
        assert_eq!(other, 0, "another has signed it");
    }
    if let Ok(keys) = KeySet::parse(input) {
        assert!((1..=64).contains(&keys.len()));
        for algorithm in ["RS256", "PS256", "ES256", "ES384", "EdDSA"] {
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg": "{algorithm}"}}"#));
            for signature in [64, 96, 256] {
                let signature = URL_SAFE_NO_PAD.encode(vec![1; signature]);
                shown(&keys, format!("{header}.e30.{signature}").as_bytes());
            }
        }
    }
    _ = keys_uri(input, ISSUER);
});
