//! The period in which a fault was active.

use std::time::Duration;

use super::kind::Kind;

#[derive(Clone, Debug)]
pub struct Shade {
    pub kind: Kind,
    pub from: Duration,
    /// `None` while the fault is active.
    pub until: Option<Duration>,
}

impl Shade {
    pub fn meets(&self, from: Duration, until: Duration) -> bool {
        self.from < until && self.until.is_none_or(|end| from < end)
    }
}

/// The faults that were active at some time in a period.
pub fn during(shades: &[Shade], from: Duration, until: Duration) -> String {
    let on: Vec<&str> =
        shades.iter().filter(|shade| shade.meets(from, until)).map(|shade| shade.kind.as_str()).collect();
    if on.is_empty() { "no fault".to_owned() } else { on.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_explained_by_the_faults_that_were_on() {
        let ms = Duration::from_millis;
        let shades = [
            Shade { kind: Kind::Kill, from: ms(10), until: Some(ms(20)) },
            Shade { kind: Kind::Loss, from: ms(15), until: None },
        ];
        assert_eq!(during(&shades, ms(0), ms(10)), "no fault");
        assert_eq!(during(&shades, ms(0), ms(16)), "kill, loss");
        assert_eq!(during(&shades, ms(20), ms(30)), "loss");
    }
}
