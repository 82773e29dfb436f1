use super::*;

fn name(text: &str) -> AccessName {
    AccessName::new(text).expect("valid")
}

fn hash(number: u8) -> TokenHash {
    TokenHash::of(&AccessToken::from_secret([number; 32]))
}

fn permission(right: Right, prefix: &str) -> PrefixRight {
    PrefixRight { right, prefix: prefix.to_owned() }
}

fn apply(access: &Access, changes: &[AccessChange]) -> Access {
    changes.iter().fold(access.clone(), |access, change| {
        access.check(&Caller::Program, change, true).expect("valid");
        access.with(change)
    })
}

fn role(role: &str, permissions: &[(Right, &str)]) -> AccessChange {
    let permissions = permissions.iter().map(|(right, prefix)| permission(*right, prefix)).collect();
    AccessChange::SetRole { role: name(role), permissions }
}

fn principal(principal: &str, roles: &[&str]) -> AccessChange {
    AccessChange::SetPrincipal { principal: name(principal), roles: roles.iter().map(|role| name(role)).collect() }
}

fn token(principal: &str, number: u8) -> AccessChange {
    AccessChange::AddToken { principal: name(principal), hash: hash(number), created_wall_ms: 7 }
}

fn expiring_token(principal: &str, number: u8, expires_wall_ms: u64) -> AccessChange {
    let (principal, hash) = (name(principal), hash(number));
    AccessChange::AddExpiringToken { principal, hash, created_wall_ms: 7, expires_wall_ms }
}

/// `root` has the tokens 1 and 2 and the right `admin`. `ci` has the token 3, and rights on `jobs/` and `reports/`.
fn guarded() -> Access {
    let worker = [(Right::Hold, "jobs/"), (Right::Read, "reports/"), (Right::Operate, "stuck/")];
    let changes = [
        role("admin", &[(Right::Admin, "")]),
        role("worker", &worker),
        principal("root", &["admin"]),
        principal("ci", &["worker"]),
        token("root", 1),
        token("root", 2),
        token("ci", 3),
        AccessChange::Enable(true),
    ];
    apply(&Access::default(), &changes)
}

fn may(access: &Access, token: u8, right: Right, lease: &str) -> bool {
    let lease = LeaseName::new(lease).expect("valid");
    access.authorize(&Caller::Token(hash(token)), &Need::Names(right, vec![&lease])).is_ok()
}

#[test]
fn rights_hold_for_their_prefix_only() {
    let access = guarded();
    for (right, lease, expected) in [
        (Right::Hold, "jobs/a", true),
        (Right::Read, "jobs/a", true),
        (Right::Operate, "jobs/a", false),
        (Right::Admin, "jobs/a", false),
        (Right::Hold, "jobs", false),
        (Right::Hold, "other", false),
        (Right::Read, "reports/a", true),
        (Right::Hold, "reports/a", false),
        (Right::Operate, "stuck/a", true),
        (Right::Read, "stuck/a", true),
        (Right::Hold, "stuck/a", false),
    ] {
        assert_eq!(may(&access, 3, right, lease), expected, "{right:?} {lease}");
        assert!(may(&access, 1, right, lease), "root: {right:?} {lease}");
        assert!(!may(&access, 4, right, lease), "an unknown token: {right:?} {lease}");
    }
    let (known, unknown) = (LeaseName::new("jobs/a").expect("valid"), LeaseName::new("x").expect("valid"));
    let both = Need::Names(Right::Hold, vec![&known, &unknown]);
    assert!(matches!(access.authorize(&Caller::Token(hash(3)), &both), Err(Denied::Forbidden(_))));
}

#[test]
fn principal_has_the_rights_of_all_its_roles() {
    let changes =
        [role("reader", &[(Right::Read, "books/")]), principal("both", &["reader", "worker"]), token("both", 4)];
    let access = apply(&guarded(), &changes);
    for (right, lease) in [(Right::Read, "books/a"), (Right::Hold, "jobs/a"), (Right::Operate, "stuck/a")] {
        assert!(may(&access, 4, right, lease), "{right:?} {lease}");
    }
    for (right, lease) in [(Right::Hold, "books/a"), (Right::Operate, "jobs/a"), (Right::Read, "other")] {
        assert!(!may(&access, 4, right, lease), "{right:?} {lease}");
    }
    for prefix in ["books/", "jobs/", "reports/"] {
        assert!(access.authorize(&Caller::Token(hash(4)), &Need::Prefix(prefix)).is_ok(), "{prefix}");
    }
    let one = apply(&access, &[principal("both", &["reader"])]);
    assert!(may(&one, 4, Right::Read, "books/a") && !may(&one, 4, Right::Hold, "jobs/a"), "a removed role");
}

#[test]
fn operator_hands_over_leases_of_all_principals() {
    let (access, ci) = (guarded(), AccessName::new("ci").expect("valid"));
    let name = |lease| LeaseName::new(lease).expect("valid");
    let decide = |token, lease| access.authorize(&Caller::Token(hash(token)), &Need::HandOver(&name(lease)));
    assert_eq!(decide(3, "stuck/a"), Ok(None));
    assert_eq!(decide(3, "jobs/a"), Ok(Some(ci)), "only its own leases");
    assert!(matches!(decide(3, "reports/a"), Err(Denied::Forbidden(_))));
    assert_eq!(decide(1, "jobs/a"), Ok(None), "an administrator");
}

#[test]
fn list_needs_a_prefix_that_one_right_covers() {
    let (access, ci) = (guarded(), Caller::Token(hash(3)));
    for (prefix, expected) in [("jobs/", true), ("jobs/a", true), ("reports/", true), ("job", false), ("", false)] {
        assert_eq!(access.authorize(&ci, &Need::Prefix(prefix)).is_ok(), expected, "{prefix:?}");
    }
    assert!(access.authorize(&Caller::Token(hash(1)), &Need::Prefix("")).is_ok());
    assert!(access.authorize(&ci, &Need::Principal).is_ok());
    assert!(matches!(access.authorize(&ci, &Need::Admin), Err(Denied::Forbidden(_))));
}

#[test]
fn caller_is_a_principal_by_token_or_certificate() {
    let access = guarded();
    let of = |caller| access.authorize(&caller, &Need::Principal);
    assert_eq!(of(Caller::Token(hash(2))), Ok(Some(name("root"))));
    assert_eq!(of(Caller::Certificate(name("ci"))), Ok(Some(name("ci"))));
    assert_eq!(of(Caller::Program), Ok(None));
    for caller in [Caller::Anonymous, Caller::Token(hash(9)), Caller::Certificate(name("guest"))] {
        assert!(matches!(of(caller.clone()), Err(Denied::Unauthenticated(_))), "{caller:?}");
    }
    // Another hash with the same id is another token.
    let mut other = hash(1);
    other.0[31] ^= 1;
    assert!(matches!(of(Caller::Token(other)), Err(Denied::Unauthenticated(_))));
    let off = access.with(&AccessChange::Enable(false));
    assert_eq!(off.authorize(&Caller::Anonymous, &Need::Admin), Ok(None));
}

#[test]
fn administrator_keeps_a_way_back() {
    let (access, root) = (guarded(), Caller::Token(hash(1)));
    for change in [
        AccessChange::RemoveToken(hash(1).id()),
        AccessChange::RemovePrincipal(name("root")),
        principal("root", &[]),
        role("admin", &[(Right::Read, "")]),
    ] {
        assert!(matches!(access.check(&root, &change, true), Err(Denied::Refused(_))), "{change:?}");
    }
    assert_eq!(access.check(&root, &AccessChange::RemoveToken(hash(2).id()), true), Ok(()));
    assert_eq!(access.check(&root, &AccessChange::Enable(false), true), Ok(()));
    let off = access.with(&AccessChange::Enable(false));
    assert!(matches!(off.check(&Caller::Anonymous, &AccessChange::Enable(true), true), Err(Denied::Refused(_))));
    assert!(matches!(off.check(&Caller::Token(hash(3)), &AccessChange::Enable(true), true), Err(Denied::Refused(_))));
    assert_eq!(off.check(&root, &AccessChange::Enable(true), true), Ok(()));
    let anonymous = off.check(&Caller::Anonymous, &AccessChange::RemovePrincipal(name("root")), true);
    assert_eq!(anonymous, Ok(()), "without access control, every caller may change it");
}

#[test]
fn one_token_of_an_administrator_does_not_expire() {
    let access = apply(&guarded(), &[principal("second", &["admin"]), expiring_token("second", 8, 50)]);
    let second = Caller::Token(hash(8));
    let refused = access.check(&second, &AccessChange::RemovePrincipal(name("root")), true);
    assert!(matches!(&refused, Err(Denied::Refused(why)) if why.contains("without a ttl")), "{refused:?}");
    let lasting = access.with(&token("second", 9));
    assert_eq!(lasting.check(&second, &AccessChange::RemovePrincipal(name("root")), true), Ok(()));
    // A certificate is a credential without a token.
    let certificate = Caller::Certificate(name("second"));
    assert_eq!(access.check(&certificate, &AccessChange::RemovePrincipal(name("root")), true), Ok(()));
    let third = access.with(&principal("third", &["admin"]));
    let with = third.check(&second, &AccessChange::RemovePrincipal(name("root")), true);
    assert_eq!(with, Ok(()), "third may have a certificate");
    let without = third.check(&second, &AccessChange::RemovePrincipal(name("root")), false);
    assert!(matches!(&without, Err(Denied::Refused(why)) if why.contains("without a ttl")), "{without:?}");
}

#[test]
fn each_change_leaves_an_administrator_with_a_lasting_token() {
    let changes = [
        role("chief", &[(Right::Admin, "")]),
        principal("second", &["chief"]),
        expiring_token("second", 8, 50),
        AccessChange::RemoveToken(hash(2).id()),
    ];
    let (access, second) = (apply(&guarded(), &changes), Caller::Token(hash(8)));
    let off = access.with(&AccessChange::Enable(false)).with(&AccessChange::RemovePrincipal(name("root")));
    for (access, change) in [
        (&off, AccessChange::Enable(true)),
        (&access, AccessChange::RemoveToken(hash(1).id())),
        (&access, AccessChange::RemovePrincipal(name("root"))),
        (&access, principal("root", &[])),
        (&access, role("admin", &[(Right::Read, "")])),
    ] {
        let refused = access.check(&second, &change, false);
        let is_refused = matches!(&refused, Err(Denied::Refused(why)) if why.contains("without a ttl"));
        assert!(is_refused, "{change:?}: {refused:?}");
        assert_eq!(access.with(&token("second", 9)).check(&second, &change, false), Ok(()), "{change:?}");
    }
}

#[test]
fn expiring_token_begins_at_the_clock_of_the_leader() {
    let AccessChange::AddExpiringToken { expires_wall_ms, created_wall_ms, .. } = expiring_token("ci", 4, 900) else {
        panic!("an expiring token")
    };
    let ttl_ms = expires_wall_ms - created_wall_ms;
    let mut change = expiring_token("ci", 4, 900);
    change.begin_at(5_000);
    let access = guarded().with(&change);
    assert_eq!((access.expired(4_999 + ttl_ms), access.expired(5_000 + ttl_ms)), (vec![], vec![hash(4).id()]));
    let view = access.view();
    let shown = view.principals[&name("ci")].tokens.iter().find(|token| token.id == hash(4).id());
    assert_eq!(shown.map(|token| token.created_wall_ms), Some(5_000), "the leader has created it");
    let mut lasting = token("ci", 5);
    lasting.begin_at(5_000);
    assert_eq!(lasting, token("ci", 5));
}

#[test]
fn changes_of_missing_things_are_refused() {
    let access = guarded();
    for change in [
        AccessChange::RemoveRole(name("missing")),
        principal("ci", &["missing"]),
        AccessChange::RemovePrincipal(name("missing")),
        token("missing", 5),
        AccessChange::RemoveToken(TokenId(5)),
    ] {
        assert!(matches!(access.check(&Caller::Program, &change, true), Err(Denied::NotFound(_))), "{change:?}");
    }
    for change in [AccessChange::RemoveRole(name("worker")), token("ci", 1), role("a", &[(Right::Admin, "jobs/")])] {
        assert!(matches!(access.check(&Caller::Program, &change, true), Err(Denied::Refused(_))), "{change:?}");
    }
    // Replicas apply also a change that is no longer valid.
    let state = access.with(&token("missing", 5));
    assert_eq!(state.state(), access.state());
}

#[test]
fn removed_principal_loses_its_tokens() {
    let access = guarded().with(&AccessChange::RemovePrincipal(name("ci")));
    assert!(!may(&access, 3, Right::Hold, "jobs/a"));
    let again = apply(&access, &[principal("ci", &["worker"])]);
    assert!(!may(&again, 3, Right::Hold, "jobs/a"), "the token does not return with the name");
}

#[test]
fn state_and_change_are_bounded() {
    let long = "p".repeat(200);
    let many = |count: u32| AccessChange::SetRole {
        role: name("many"),
        permissions: (0..count).map(|number| permission(Right::Read, &format!("{long}{number}"))).collect(),
    };
    assert_eq!(Access::default().check(&Caller::Program, &many(300), true), Ok(()));
    let refused = Access::default().check(&Caller::Program, &many(400), true);
    assert!(matches!(&refused, Err(Denied::Refused(why)) if why.contains("at most 65536")), "{refused:?}");
    let mut access = Access::default();
    let mut roles = 0;
    let refused = loop {
        let AccessChange::SetRole { permissions, .. } = many(300) else { panic!("a role") };
        let change = AccessChange::SetRole { role: name(&format!("role-{roles}")), permissions };
        match access.check(&Caller::Program, &change, true) {
            Ok(()) => access = access.with(&change),
            Err(refused) => break refused,
        }
        roles += 1;
    };
    assert!(matches!(&refused, Denied::Refused(why) if why.contains("at most 524288")), "{refused}");
    assert_eq!(roles, 8, "each has about 61 KB");
}

#[test]
fn expiries_count_for_the_size_of_the_state() {
    let hash_of = |number: u32| {
        let mut bytes = [0xff; 32];
        bytes[4..8].copy_from_slice(&number.to_be_bytes());
        TokenHash(bytes)
    };
    let hashes: Vec<TokenHash> = (0..11_000).map(hash_of).collect();
    let tokens = hashes.iter().map(|hash| (hash.id(), Token { hash: *hash, created_wall_ms: 7 })).collect();
    let expiries: BTreeMap<TokenId, u64> = hashes.iter().map(|hash| (hash.id(), 1_767_225_600_000)).collect();
    let principals = BTreeMap::from([(name("ci"), PrincipalState { tokens, ..PrincipalState::default() })]);
    let lasting = AccessState { principals, ..AccessState::default() };
    let bytes = [codec::encode(&lasting).len(), codec::encode(&expiries).len()];
    assert!(bytes[0] < MAX_STATE_BYTES - 1_000 && bytes[0] + bytes[1] > MAX_STATE_BYTES, "{bytes:?}");
    let add = |state: AccessState| Access::from(state).check(&Caller::Program, &token("ci", 1), true);
    assert_eq!(add(lasting.clone()), Ok(()), "tokens that do not expire");
    let refused = add(lasting.with_expiries(expiries));
    assert!(matches!(&refused, Err(Denied::Refused(why)) if why.contains("at most 524288")), "{refused:?}");
}

#[test]
fn expiry_ends_with_its_token() {
    let access = apply(&guarded(), &[expiring_token("ci", 4, 20), expiring_token("root", 5, 30)]);
    assert!(may(&access, 4, Right::Hold, "jobs/a"));
    assert_eq!(access.expired(19), []);
    assert_eq!(access.expired(20), [hash(4).id()]);
    assert_eq!(access.expired(u64::MAX).len(), 2, "the others do not expire");
    let removed = access.with(&AccessChange::RemoveToken(hash(4).id()));
    assert!(!may(&removed, 4, Right::Hold, "jobs/a"));
    assert_eq!(removed.expired(u64::MAX), [hash(5).id()]);
    let removed = removed.with(&AccessChange::RemovePrincipal(name("root")));
    assert_eq!(removed.expired(u64::MAX), []);
    let unknown = expiring_token("missing", 6, 1);
    assert!(matches!(access.check(&Caller::Program, &unknown, true), Err(Denied::NotFound(_))));
    assert_eq!(access.with(&unknown).expired(u64::MAX).len(), 2, "a change without its principal adds nothing");
    let twice = access.check(&Caller::Program, &expiring_token("ci", 4, 99), true);
    assert!(matches!(twice, Err(Denied::Refused(_))), "{twice:?}");
}

#[test]
fn debug_text_shows_the_id_and_not_the_hash() {
    let text = format!("{:?}", token("ci", 1));
    assert!(text.contains(&hash(1).id().to_string()), "{text}");
    assert!(!text.contains(&format!("{:02x}{:02x}", hash(1).0[30], hash(1).0[31])), "{text}");
}

#[test]
fn creation_and_revoke_of_a_token_are_logged_with_its_id() {
    let id = hash(1).id();
    let revoked = format!("{:?}", AccessChange::RemoveToken(id));
    assert_eq!(revoked, format!("RemoveToken(TokenId({id}))"));
    for created in [token("ci", 1), expiring_token("ci", 1, 9)] {
        let created = format!("{created:?}");
        assert!(created.contains(&id.to_string()), "{created}");
    }
}

#[test]
fn encoded_changes_are_frozen() {
    let hex =
        |change: &AccessChange| codec::encode(change).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&AccessChange::Enable(true)), "0001");
    assert_eq!(hex(&role("r", &[(Right::Hold, "j/")])), "01017201".to_owned() + "01026a2f");
    assert_eq!(hex(&AccessChange::RemoveRole(name("r"))), "020172");
    assert_eq!(hex(&principal("p", &["r"])), "03017001".to_owned() + "0172");
    assert_eq!(hex(&AccessChange::RemovePrincipal(name("p"))), "040170");
    let added = hex(&AccessChange::AddToken { principal: name("p"), hash: TokenHash([7; 32]), created_wall_ms: 9 });
    assert_eq!(added, format!("050170{}09", "07".repeat(32)));
    assert_eq!(hex(&AccessChange::RemoveToken(TokenId(5))), "0605");
    assert_eq!(
        hex(&expiring_token("p", 1, 11)),
        format!("070170{}070b", hash(1).0.map(|b| format!("{b:02x}")).concat())
    );
}
