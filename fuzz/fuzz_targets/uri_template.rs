//! Templates and paths: a target that a path names is found again in the path that is made for it.
#![no_main]

use hoplite_wire::Template;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (template, path) = input;
    for template in [template.parse(), Ok(Template::well_known())]
        .into_iter()
        .flatten()
    {
        again(&template, path);
    }
});

fn again(template: &Template, path: &str) {
    if let Ok(target) = template.match_path(path) {
        assert_eq!(template.match_path(&template.expand(&target)), Ok(target));
    }
}
