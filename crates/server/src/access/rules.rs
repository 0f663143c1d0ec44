//! Rules: who may do what where. The first that matches decides.
//!
//! In:    an identity, a verb, a resource. Out: yes or no, and which rule said so.
//! Never: decodes, folds case or tidies a name: rules see resources exactly as the table does, so there is no second
//!        spelling of a name to slip past them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::identity::{ANONYMOUS, Identity};

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// See claims and who holds what.
    Read,
    /// Hold a resource, renew and release what one holds.
    Claim,
    /// End or change the claims of others.
    Revoke,
    /// Look after the service: members, settings, backups. Whoever may do that may also scrape.
    Admin,
    /// Scrape `/metrics`, and nothing else.
    Metrics,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Claim, Self::Revoke, Self::Admin, Self::Metrics];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its name in rules and refusals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Claim => "claim",
            Self::Revoke => "revoke",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

impl std::str::FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|verb| verb.as_str() == text);
        found.ok_or_else(|| {
            format!("'{text}' is not a verb; the verbs are {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rule as it stands in the TOML file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RuleOptions {
    /// Users; `*` is every user with valid credentials, `anonymous` every caller without any.
    #[serde(default)]
    pub users: Vec<String>,
    /// Groups: one is enough.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Resources: a name and all below it, or everything that starts with what stands before a final `*`.
    pub resources: Vec<String>,
    /// Verbs, or `*`.
    pub verbs: Vec<String>,
    /// `allow`, which is the default, or `deny`.
    #[serde(default)]
    pub effect: Effect,
}

/// What a rule says when it matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Yes.
    #[default]
    Allow,
    /// No.
    Deny,
}

/// All rules, in order.
#[derive(Debug, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// It holds for every user with valid credentials.
    everyone: bool,
    /// It holds for every caller without credentials.
    anonymous: bool,
    users: Vec<Arc<str>>,
    groups: Vec<Arc<str>>,
    resources: Vec<Pattern>,
    /// One bit each: rules are asked at every request.
    verbs: u8,
    effect: Effect,
}

#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    /// This name, and all names below it.
    Below(String),
    /// All names with this prefix.
    Starts(String),
}

/// What was decided, and by which rule (counted from 1); `None`: no rule matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Yes or no.
    pub allowed: bool,
    /// By which rule.
    pub rule: Option<usize>,
}

impl Rules {
    /// Checks rules; a mistake is named with the number of its rule.
    pub fn new(options: &[RuleOptions]) -> Result<Self, String> {
        let numbered = options.iter().enumerate();
        let rules = numbered.map(|(i, rule)| Rule::new(rule).map_err(|why| format!("rule {}: {why}", i + 1)));
        rules.collect::<Result<_, _>>().map(Self)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this identity may do that there. Without any rule, whoever is known may do everything.
    pub fn decide(&self, who: &Identity, verb: Verb, resource: &str) -> Decision {
        let matching = |rule: &Rule| {
            rule.verbs & verb.bit() != 0
                && rule.is_for(who)
                && rule.resources.iter().any(|p| p.matches(resource))
        };
        match self.0.iter().position(matching) {
            Some(place) => Decision { allowed: self.0[place].effect == Effect::Allow, rule: Some(place + 1) },
            None => Decision { allowed: self.0.is_empty() && who.is_known(), rule: None },
        }
    }

    /// Whether there is a name that starts so on which this identity could have the right.
    pub fn could(&self, who: &Identity, verb: Verb, prefix: &str) -> bool {
        let gives = |rule: &Rule| {
            rule.effect == Effect::Allow
                && rule.verbs & verb.bit() != 0
                && rule.is_for(who)
                && rule.resources.iter().any(|pattern| pattern.overlaps(prefix))
        };
        if self.0.is_empty() { who.is_known() } else { self.0.iter().any(gives) }
    }

    /// Whether this identity may do that to every resource there is, or will be.
    pub fn everywhere(&self, who: &Identity, verb: Verb) -> bool {
        let mut concerning = self.0.iter().filter(|rule| rule.verbs & verb.bit() != 0 && rule.is_for(who));
        // What comes before the first rule for all names may only give.
        let first = concerning.find(|rule| rule.effect == Effect::Deny || rule.is_for_all_names());
        if self.0.is_empty() {
            who.is_known()
        } else {
            first.is_some_and(|rule| rule.effect == Effect::Allow)
        }
    }
}

impl Rule {
    fn new(options: &RuleOptions) -> Result<Self, String> {
        if options.users.is_empty() && options.groups.is_empty() {
            return Err(
                "the rule applies to nobody: set users or groups; users = [\"*\"] is everyone with credentials".into(),
            );
        }
        if options.resources.is_empty() || options.verbs.is_empty() {
            return Err(
                "the rule allows or denies nothing: set resources and verbs; [\"*\"] is all of them".into()
            );
        }
        let verbs: Vec<Verb> = match &options.verbs[..] {
            [all] if all == "*" => Verb::ALL.to_vec(),
            verbs => verbs.iter().map(|verb| verb.parse()).collect::<Result<_, _>>()?,
        };
        let is = |name: &str| options.users.iter().any(|user| user == name);
        let names = |names: &[String]| names.iter().map(|name| Arc::from(name.as_str())).collect();
        Ok(Self {
            everyone: is("*"),
            anonymous: is(ANONYMOUS),
            users: names(&options.users),
            groups: names(&options.groups),
            resources: options.resources.iter().map(|text| Pattern::new(text)).collect::<Result<_, _>>()?,
            verbs: verbs.into_iter().fold(0, |bits, verb| bits | verb.bit()),
            effect: options.effect,
        })
    }

    fn is_for(&self, who: &Identity) -> bool {
        if !who.is_known() {
            return self.anonymous;
        }
        self.everyone
            || self.users.iter().any(|user| **user == *who.user)
            || self.groups.iter().any(|group| who.groups.contains(group))
    }

    fn is_for_all_names(&self) -> bool {
        self.resources.iter().any(|pattern| matches!(pattern, Pattern::Starts(start) if start.is_empty()))
    }
}

impl Pattern {
    fn new(text: &str) -> Result<Self, String> {
        match text.strip_suffix('*') {
            _ if text.is_empty() => Err("a resource is empty; \"*\" is all of them".into()),
            Some(start) if start.contains('*') => Err(format!("'{text}': '*' stands only at the end")),
            Some(start) => Ok(Self::Starts(start.into())),
            None if text.contains('*') => Err(format!("'{text}': '*' stands only at the end")),
            None => Ok(Self::Below(text.strip_suffix('/').unwrap_or(text).into())),
        }
    }

    /// Whether some name that starts with `prefix` matches.
    fn overlaps(&self, prefix: &str) -> bool {
        match self {
            Self::Starts(start) => prefix.starts_with(start.as_str()) || start.starts_with(prefix),
            Self::Below(name) => name.starts_with(prefix) || self.matches(prefix),
        }
    }

    fn matches(&self, resource: &str) -> bool {
        match self {
            Self::Starts(start) => resource.starts_with(start.as_str()),
            Self::Below(name) => {
                let rest = resource.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::How;
    use super::*;

    fn rule(
        users: &[&str],
        groups: &[&str],
        resources: &[&str],
        verbs: &[&str],
        effect: Effect,
    ) -> RuleOptions {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        RuleOptions {
            users: texts(users),
            groups: texts(groups),
            resources: texts(resources),
            verbs: texts(verbs),
            effect,
        }
    }

    fn user(name: &str, groups: &[&str]) -> Identity {
        Identity::new(name, groups, How::Key).unwrap()
    }

    #[test]
    fn the_first_match_wins_and_what_no_rule_names_is_denied() {
        let rules = Rules::new(&[
            rule(&["ci"], &[], &["prod/db"], &["claim"], Effect::Deny),
            rule(&["ci"], &["ops"], &["prod", "nightly-*"], &["read", "claim"], Effect::Allow),
            rule(&["anonymous", "*"], &[], &["public"], &["read"], Effect::Allow),
        ])
        .unwrap();
        let decide = |who: &Identity, verb, resource| rules.decide(who, verb, resource);
        let (ci, ops, nobody) =
            (user("ci", &[]), user("anna", &["x", "ops"]), Identity::nobody(How::Nothing));
        let yes = |rule| Decision { allowed: true, rule: Some(rule) };
        assert_eq!(decide(&ci, Verb::Claim, "prod/db"), Decision { allowed: false, rule: Some(1) });
        assert_eq!(decide(&ci, Verb::Read, "prod/db"), yes(2));
        assert_eq!(decide(&ops, Verb::Claim, "prod/db/x"), yes(2));
        assert_eq!(decide(&ops, Verb::Claim, "nightly-7"), yes(2));
        assert_eq!(decide(&nobody, Verb::Read, "public/a"), yes(3));
        let no = Decision { allowed: false, rule: None };
        for (who, verb, resource) in [
            (&ci, Verb::Revoke, "prod"),
            (&ci, Verb::Claim, "production"),
            (&ci, Verb::Claim, "PROD/a"),
            (&ci, Verb::Claim, "/prod/a"),
            (&ci, Verb::Claim, "./prod/a"),
            (&ci, Verb::Claim, "nightly"),
            (&nobody, Verb::Read, "prod/a"),
            (&user("anna", &[]), Verb::Read, "prod"),
        ] {
            assert_eq!(decide(who, verb, resource), no, "{who} {verb} {resource}");
        }
    }

    #[test]
    fn without_rules_whoever_is_known_may_do_everything() {
        let rules = Rules::default();
        assert!(rules.decide(&user("ci", &[]), Verb::Admin, "x").allowed);
        for how in [How::Nothing, How::Refused] {
            assert!(!rules.decide(&Identity::nobody(how), Verb::Read, "x").allowed);
        }
    }

    #[test]
    fn everywhere_is_a_right_on_all_names_that_nothing_before_it_takes_away() {
        let all = rule(&["anna"], &[], &["*"], &["read"], Effect::Allow);
        let some = rule(&["anna"], &[], &["db*"], &["read"], Effect::Allow);
        let denied = rule(&["*"], &[], &["payroll"], &["read"], Effect::Deny);
        for (rules, expected) in [
            (vec![all.clone()], true),
            (vec![some.clone(), all.clone(), denied.clone()], true),
            (vec![denied, all], false),
            (vec![some], false),
            (vec![], true),
        ] {
            let rules = Rules::new(&rules).unwrap();
            assert_eq!(rules.everywhere(&user("anna", &[]), Verb::Read), expected, "{rules:?}");
            assert!(!rules.everywhere(&Identity::nobody(How::Nothing), Verb::Read));
        }
    }

    #[test]
    fn nobody_becomes_somebody_by_a_name_in_a_rule() {
        let rules = Rules::new(&[rule(&["anna"], &["ops"], &["*"], &["*"], Effect::Allow)]).unwrap();
        let mut nobody = Identity::nobody(How::Refused);
        nobody.user = "anna".into();
        nobody.groups = vec!["ops".into()];
        assert!(!rules.decide(&nobody, Verb::Read, "x").allowed);
    }

    #[test]
    fn mistakes_are_named_with_the_rule() {
        for (bad, word) in [
            (rule(&[], &[], &["*"], &["*"], Effect::Allow), "nobody"),
            (rule(&["a"], &[], &[], &["*"], Effect::Allow), "resources"),
            (rule(&["a"], &[], &["*"], &["write"], Effect::Allow), "'write'"),
            (rule(&["a"], &[], &["a*b"], &["*"], Effect::Allow), "'a*b'"),
            (rule(&["a"], &[], &[""], &["*"], Effect::Allow), "empty"),
        ] {
            let why = Rules::new(&[bad]).unwrap_err();
            assert!(why.starts_with("rule 1: ") && why.contains(word), "{why}");
        }
    }
}
