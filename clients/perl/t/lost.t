# A claim that is lost calls back, or ends the process, wherever the program is.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;
use Time::HiRes qw(sleep time);

use Leasehold;
use TestServer qw(eventually program PATIENCE);

my $server = TestServer->start;

# Sleeps until something happens; a signal wakes it.
sub sleep_until {
    my ($is_true) = @_;
    my $end = time + PATIENCE;
    sleep 5 until $is_true->() || time > $end;
    return ok $is_true->(), 'it was told';
}

subtest 'a callback is called once, with the claim and the reason' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => sub { push @told, [@_] } );
    my $claim   = $manager->claim('revoked');
    $server->revoke( $claim->id );
    local $@ = 'mine';
    sleep_until( sub {@told} );
    is $@, 'mine', '$@ is untouched';
    my ( $lost, $error ) = @{ $told[0] };
    is $lost, $claim;
    isa_ok $error, 'Leasehold::Error::Lost';
    is $error->reason, 'ended';
    ok $claim->is_lost;
    $manager->ping for 1 .. 3;
    is scalar @told, 1, 'once';
};

subtest 'a claim has a callback of its own' => sub {
    my ( $of_manager, $of_claim ) = ( 0, 0 );
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => sub { $of_manager++ } );
    my $claim   = $manager->claim( resource => 'own', on_lost => sub { $of_claim++ } );
    $server->revoke( $claim->id );
    sleep_until( sub {$of_claim} );
    is $of_manager, 0;
};

subtest 'is_lost and validate notice it where signals are blocked' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => sub { } );
    my $claim   = $manager->claim('blocked');
    my $blocked = POSIX::SigSet->new( POSIX::SIGURG() );
    POSIX::sigprocmask( POSIX::SIG_BLOCK(), $blocked );
    $server->revoke( $claim->id );
    ok eventually( sub { $claim->is_lost } );
    POSIX::sigprocmask( POSIX::SIG_UNBLOCK(), $blocked );
};

subtest 'a server that does not answer: lost before the ttl is over' => sub {
    my $own = TestServer->start;
    my $reason;
    my $manager = Leasehold::LockManager->new( url => $own->url, ttl => 2, on_lost => sub { $reason = $_[1]->reason } );
    my $claim = $manager->claim('stopped');
    $own->stop;
    sleep_until( sub {$reason} );
    is $reason, 'not-renewed';
    $own->kill_it;
};

subtest 'max_hold' => sub {
    my $reason;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => sub { $reason = $_[1]->reason } );
    my $claim = $manager->claim( resource => 'max-hold', max_hold => 1 );
    sleep_until( sub {$reason} );
    is $reason, 'max-hold';
    is eval { $claim->release; 1 }, undef;
    is $@->reason, 'max-hold';
};

subtest 'while the program waits for another claim, and in a command that it runs' => sub {
    my $id      = $server->take('waited-for');
    my $told    = 0;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => sub { $told++; $server->give($id) } );
    my $lost    = $manager->claim('lost-meanwhile');
    $server->revoke( $lost->id );
    my $claim = $manager->claim( resource => 'waited-for', timeout => PATIENCE );
    is $told, 1, 'the callback ran, and made the other claim possible';
    ok $claim->validate;
    my $in_command = 0;
    # The command ends when the callback has run.
    my $folder = File::Temp->newdir;
    $lost = $manager->claim( resource => 'lost-in-command', on_lost => sub { $in_command++; mkdir "$folder/told" } );
    $server->revoke( $lost->id );
    my $command = 'my $end = time + ' . PATIENCE . '; sleep 1 until -e $ARGV[0] || time > $end; exit 3';
    is system( $^X, '-e', $command, "$folder/told" ), 3 << 8, 'the command keeps its code';
    is $in_command, 1;
};

subtest 'a callback may throw; the others are called all the same' => sub {
    my ( @told, @warnings );
    my $own     = TestServer->start;
    my $manager = Leasehold::LockManager->new(
        url     => $own->url,
        ttl     => 2,
        on_lost => sub { push @told, $_[0]->resource; die 'stop ' . $_[0]->resource . "\n" },
    );
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    my @claims = map { $manager->claim($_) } qw(a b c);
    $own->stop;
    my @thrown;
    # They may be noticed one by one.
    while ( @told < 3 ) {
        eval { sleep PATIENCE while @told < 3; 1 } or push @thrown, $@;
    }
    is_deeply [ sort @told ], [qw(a b c)];
    is_deeply [ sort @thrown, @warnings ], [ map {"stop $_\n"} qw(a b c) ], 'each is thrown or is a warning';
    ok scalar @thrown, 'at least one is thrown';
    $own->kill_it;
};

subtest 'a callback that runs a command leaves $? alone' => sub {
    my $told    = 0;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 3,
        on_lost => sub { system $^X, '-e', 'exit 9'; $told++ } );
    my $claim = $manager->claim('status');
    system $^X, '-e', 'exit 4';
    $server->revoke( $claim->id );
    sleep_until( sub {$told} );
    is $? >> 8, 4;
};

subtest 'a loss that comes with the end of another call is not forgotten' => sub {
    my $own     = TestServer->start;
    my $told    = 0;
    my $manager = Leasehold::LockManager->new( url => $own->url, ttl => 3, on_lost => sub { $told++ } );
    # The same moment for both: the claim is lost when the other request is given up.
    for my $round ( 1 .. 4 ) {
        my $claim = $manager->claim("moment-$round");
        $own->stop;
        my $left = $claim->validate;
        my $before = $told;
        eval { my $other = $manager->claim( resource => "other-$round", timeout => $left - 0.02 + 0.01 * $round ) };
        my $end = time + PATIENCE;
        select undef, undef, undef, $end - time while $told == $before && time < $end;
        is $told, $before + 1, 'told without another call';
        $own->continue;
    }
};

subtest 'a keychain that hangs: lost by this process\'s own clock, and not before' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 2, on_lost => sub { push @told, $_[1]->reason } );
    my ( $asked, $validated, $long ) = map { $manager->claim( resource => "hangs-$_->[0]", ttl => $_->[1] ) }
        ( [ asked => 2 ], [ validated => 2 ], [ long => 600 ] );
    # Renewed beyond its first ttl: the clock alone ends nothing.
    my $end = time + 3;
    while ( time < $end ) { sleep 0.2 }
    ok !$asked->is_lost, 'a claim that is renewed is not lost';
    my $keychain = $manager->keychain_pid;
    kill STOP => $keychain;
    ok eventually( sub { $asked->is_lost } ), 'is_lost';
    is_deeply \@told, ['not-renewed'], 'the callback was called';
    is eval { $validated->validate; 1 }, undef, 'validate';
    isa_ok $@, 'Leasehold::Error::Lost';
    is $@->reason, 'not-renewed';
    ok !$long->is_lost, 'a claim that may still hold is not called lost';
    kill CONT => $keychain;
    ok $long->validate > 0;
};

subtest 'terminate, the default: SIGTERM, and the reason on standard error' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $claim = Leasehold::LockManager->new( url => $ARGV[0], ttl => 3 )->claim('terminate');
print $claim->id, "\n";
sleep 1000;
PROGRAM
    $server->revoke( $program->line );
    is $program->end, 'signal 15';
    like $program->errors, qr/the claim on 'terminate' is lost.*terminated/s;
};

subtest 'terminate begins one grace before the server could hand over' => sub {
    my $own     = TestServer->start;
    my $program = program( <<'PROGRAM', $own->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 8, on_lost => 'terminate' );
$SIG{TERM} = sub { print "told\n" };
my $claim = $manager->claim('grace');
print "held ", $claim->validate, "\n";
sleep 1 while 1;
PROGRAM
    my ($certain) = $program->line =~ m/held (.*)/;
    cmp_ok $certain, '<', 6, 'a quarter of the ttl is kept for the end';
    $own->stop;
    is $program->line, 'told', 'its handler is called';
    is $program->end, 'signal 9', 'one that stays is killed';
    $own->kill_it;
};

subtest 'a program that ignores SIGTERM, and its warnings, is killed' => sub {
    my $program = program( <<'PROGRAM', $server->url );
$SIG{TERM} = 'IGNORE';
$SIG{__WARN__} = sub { die @_ };
my $claim = Leasehold::LockManager->new( url => $ARGV[0], ttl => 3 )->claim('ignore');
print $claim->id, "\n";
sleep 1 while 1;
PROGRAM
    $server->revoke( $program->line );
    is $program->end, 'signal 9';
    like $program->errors, qr/is lost/;
};

subtest 'a handler of SIGTERM may end the program itself' => sub {
    my $program = program( <<'PROGRAM', $server->url );
$SIG{TERM} = sub { exit 7 };
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 3 );
my ( $claim, $other ) = map { $manager->claim($_) } qw(handler other);
print $claim->id, "\n";
sleep 1 while 1;
PROGRAM
    $server->revoke( $program->line );
    is $program->end, 'exit 7';
    is $server->statuses('other'), 'released', 'and what it still holds is released';
};

done_testing;
