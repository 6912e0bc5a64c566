//! Scenarios as a whole: what a researcher writes, and what comes of it.

use super::*;

#[test]
fn smoke_loads_and_every_key_resolves() {
    let scenario = load(Path::new("smoke")).expect("built in");
    for key in scenario.keys() {
        let trial = scenario
            .trial(&key, Path::new("/d"), Path::new("/s"))
            .expect("resolves");
        assert_eq!(trial.key, key);
    }
}
