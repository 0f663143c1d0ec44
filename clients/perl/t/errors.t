# Every failure is an exception of its own class, which says what happened and where.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold;
use TestServer qw(eventually);

my $server  = TestServer->start;
my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { } );

sub thrown {
    my ( $code, $class ) = @_;
    eval { $code->(); 1 } and return fail("$class was not thrown");
    isa_ok $@, "Leasehold::Error::$class";
    isa_ok $@, 'Leasehold::Error';
    return $@;
}

subtest 'NotAcquired: it was not free in time' => sub {
    my $id    = $server->take('held');
    my $error = thrown( sub { $manager->claim( resource => 'held', timeout => 0 ) }, 'NotAcquired' );
    is $error->resource, 'held';
    $error = thrown( sub { $manager->claim( resource => 'held', timeout => 0.5 ) }, 'NotAcquired' );
    like $error->message, qr/'held' was not free within/;
    is $error->position, 1, 'its place in the queue';
    ok !$error->holder || $error->holder->{claim} eq $id, 'the holder, if the server told';
    like "$error", qr/\ALeasehold::Error::NotAcquired: .* at t\/errors\.t line \d+\.\n\z/, 'it reads well';
    is $error->file, 't/errors.t';
    cmp_ok $error->line, '>', 10;
    ok $error, 'it is true';
    is_deeply [ sort grep { $_ ne 'active' } split q{ }, $server->statuses('held') ], [ ('withdrawn') x 2 ], 'both left the queue';
    $server->give($id);
};

subtest 'AlreadyClaimed: one claim on a resource at a time' => sub {
    my $claim = $manager->claim('twice');
    my $error = thrown( sub { $manager->claim('twice') }, 'AlreadyClaimed' );
    isa_ok $error, 'Leasehold::Error::Refused';
    is $error->resource, 'twice';
    ok $claim->validate, 'the first is untouched';
};

subtest 'Refused: the server says no, with its status' => sub {
    my $error = thrown( sub { $manager->claim( 'x' x 5000 ) }, 'Refused' );
    is $error->status, 400;
    my $claim = $manager->claim('refused');
};

subtest 'Lost: the claim does not hold any more' => sub {
    my $claim = $manager->claim( resource => 'lost', ttl => 600 );
    $server->revoke( $claim->id );
    my $error = thrown( sub { $claim->refresh }, 'Lost' );
    is $error->reason, 'ended';
    is $error->claim, $claim->id;
    is $error->token, $claim->token;
    like $error->message, qr/'lost' is lost/;
    ok $claim->is_lost;
    thrown( sub { $claim->validate }, 'Lost' );
    thrown( sub { $claim->refresh },  'Lost' );
    thrown( sub { $claim->release },  'Lost' );
    ok $claim->release, 'it is reported once';
    $claim = $manager->claim( resource => 'lost-unnoticed', ttl => 600 );
    $server->revoke( $claim->id );
    is thrown( sub { $claim->release }, 'Lost' )->reason, 'ended', 'a release tells, too';
};

subtest 'a claim that was lost never touches the next claim on its resource' => sub {
    my @claims;
    for my $how (qw(release destroy)) {
        my $old = $manager->claim( resource => 'again', ttl => 600 );
        $server->revoke( $old->id );
        thrown( sub { $old->refresh }, 'Lost' );
        my $new = $manager->claim('again');
        if ( $how eq 'release' ) {
            thrown( sub { $old->release }, 'Lost' );
        }
        undef $old;
        ok $manager->ping;
        ok $new->validate, "after $how";
        $new->release;
    }
};

subtest 'Ended: the claim was released' => sub {
    my $claim = $manager->claim('ended');
    $claim->release;
    is thrown( sub { $claim->validate }, 'Ended' )->resource, 'ended';
    thrown( sub { $claim->refresh }, 'Ended' );
};

subtest 'Invalid: a parameter makes no sense' => sub {
    my %wrong = (
        'an empty name'     => [q{}],
        'no name'           => [],
        'a reference'       => [ ['r'] ],
        'a negative ttl'    => [ 'r', ttl => -1 ],
        'ttl 0'             => [ 'r', ttl => 0 ],
        'a ttl in words'    => [ 'r', ttl => 'long' ],
        'an endless ttl'    => [ 'r', ttl => 9**9**9 ],
        'no number'         => [ 'r', timeout => -sin 9**9**9 ],
        'unknown'           => [ 'r', tll => 1 ],
        'half a pair'       => ["r\x{D800}"],
        'beyond Unicode'    => ["r\x{110000}"],
        'half a pair inside' => [ 'r', data => { note => "\x{DFFF}" } ],
        'more than a line'  => [ 'r', data => { note => 'x' x 2_000_000 } ],
        'no callback'       => [ 'r', on_lost => 'ignore' ],
        'code as data'      => [ 'r', data => { code => sub { } } ],
        'text that is none' => [ 'r', data => 'not JSON' ],
        'all of it to stop' => [ 'r', ttl => 1, lead => 2 ],
    );
    for my $what ( sort keys %wrong ) {
        eval { my $claim = $manager->claim( @{ $wrong{$what} } ); 1 } and fail($what);
        isa_ok $@, 'Leasehold::Error::Invalid', $what;
    }
    my @wrong = (
        [ ttl => 'x' ], [ timeout => -1 ], [ api_version => 'v1/x' ], [ on_lost => 'nothing' ],
        [ on_destroy_failure => 'ignore' ], [ colour => 'red' ], [ url => q{} ], [ url => [] ], [ max_hold => 0 ],
    );
    for my $wrong (@wrong) {
        thrown( sub { Leasehold::LockManager->new( @{$wrong} ) }, 'Invalid' );
    }
    my $claim = $manager->claim("valid \x{1F600}");
    thrown( sub { $claim->refresh( ttl => 0 ) },  'Invalid' );
    thrown( sub { $claim->refresh( time => 1 ) }, 'Invalid' );
};

subtest 'Unreachable: no server answers' => sub {
    my $lonely = Leasehold::LockManager->new( url => 'http://127.0.0.1:1' );
    thrown( sub { $lonely->claim( resource => 'r', timeout => 0.3 ) }, 'Unreachable' );
};

subtest 'Unknown: the server does not say whether it is released' => sub {
    my $own   = TestServer->start;
    my $there = Leasehold::LockManager->new( url => $own->url, on_lost => sub { } );
    my $claim = $there->claim( resource => 'unknown', ttl => 600 );
    $own->stop;
    my $error = thrown( sub { $claim->release }, 'Unknown' );
    is $error->resource, 'unknown';
    is $error->claim, $claim->id;
    $own->continue;
};

subtest 'KeychainGone: the manager is closed' => sub {
    my $closed = Leasehold::LockManager->new( url => $server->url );
    $closed->close;
    thrown( sub { $closed->claim('r') }, 'KeychainGone' );
    thrown( sub { $closed->$_ }, 'KeychainGone' ) for qw(list ping keychain_pid);
};

subtest 'Aborted: a signal ended the keychain while the claim waited' => sub {
    my $id  = $server->take('aborted');
    my $own = Leasehold::LockManager->new( url => $server->url );
    my $pid = $own->keychain_pid;
    if ( !fork ) {
        # From another process, when it waits.
        eventually( sub { $server->statuses('aborted') eq 'active waiting' } );
        kill TERM => $pid;
        POSIX::_exit(0);
    }
    # The keychain ends with its claims; its last words may be lost with it.
    my $class = eval { my $claim = $own->claim('aborted'); 1 } ? 'nothing' : ref $@;
    like $class, qr/\ALeasehold::Error::(?:Aborted|KeychainGone)\z/;
    wait;
    is $server->statuses('aborted'), 'active aborted';
};

subtest 'each word of the keychain has its class' => sub {
    my %class_of = (
        invalid => 'Invalid', timeout => 'NotAcquired', unreachable => 'Unreachable', refused => 'Refused',
        'already-claimed' => 'AlreadyClaimed', ended => 'Ended', lost => 'Lost', unknown => 'Unknown',
        aborted => 'Aborted', closed => 'KeychainGone',
    );
    for my $word ( sort keys %class_of ) {
        my $error = Leasehold::Error->from_answer( { error => $word, detail => 'why (409)' } );
        is ref $error, "Leasehold::Error::$class_of{$word}";
        is $error->message, 'why (409)';
    }
    is ref( Leasehold::Error->from_answer( { error => 'new-word' } ) ), 'Leasehold::Error', 'also one that is not known yet';
};

done_testing;
