# A keychain that is killed or stuck loses its claims, and the program hears of it.

use strict;
use warnings;

use lib 't/lib';
use Test::More;
use Time::HiRes qw(sleep);

use Leasehold;
use TestServer qw(eventually program);

my $server = TestServer->start;

subtest 'killed: the claims are lost at once, and the next claim starts another' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { push @told, $_[1] } );
    my ( $claim, $other ) = map { $manager->claim($_) } qw(killed other);
    my $pid = $manager->keychain_pid;
    kill KILL => $pid;
    sleep 1 until @told == 2;
    is_deeply [ map { $_->reason } @told ], [ ('keychain-gone') x 2 ];
    for my $call (qw(validate refresh release)) {
        is eval { $claim->$call; 1 }, undef;
        isa_ok $@, 'Leasehold::Error::Lost', $call;
        is $@->reason, 'keychain-gone';
    }
    ok $other->is_lost;
    my $next = $manager->claim('next');
    ok $next->validate;
    isnt $manager->keychain_pid, $pid;
    undef $other;
    ok $next->validate, 'what was lost does not touch it';
    ok $manager->close;
    is $server->statuses('next'), 'released';
};

subtest 'killed while the program does not look: no SIGPIPE, an exception' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0], on_lost => sub { } );
my $claim = $manager->claim('pipe');
my $blocked = POSIX::SigSet->new( POSIX::SIGURG() );
POSIX::sigprocmask( POSIX::SIG_BLOCK(), $blocked );
kill KILL => $manager->keychain_pid;
select undef, undef, undef, 0.01 while kill 0 => $manager->{keychain}->pid;
print eval { $claim->release; 1 } ? "released\n" : ref $@, "\n";
print eval { $manager->ping; 1 } ? "another\n" : ref $@, "\n";
PROGRAM
    like $program->line, qr/\ALeasehold::Error::(?:Lost|Unknown)\z/;
    is $program->line, 'another';
    is $program->end, 'exit 0';
};

subtest 'killed while a claim waits' => sub {
    my $id      = $server->take('waits');
    my $manager = Leasehold::LockManager->new( url => $server->url );
    my $pid     = $manager->keychain_pid;
    if ( !fork ) {
        eventually( sub { $server->statuses('waits') eq 'active waiting' } );
        kill KILL => $pid;
        POSIX::_exit(0);
    }
    is eval { my $claim = $manager->claim('waits'); 1 }, undef;
    isa_ok $@, 'Leasehold::Error::KeychainGone';
    wait;
};

subtest 'killed: terminate is the default' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0] );
my $claim = $manager->claim('terminate');
print $manager->keychain_pid, "\n";
sleep 1000;
PROGRAM
    kill KILL => $program->line;
    is $program->end, 'signal 15';
    like $program->errors, qr/keychain process has ended/;
};

subtest 'killed in a program that holds nothing: nothing happens' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url );
    my $pid     = $manager->keychain_pid;
    kill KILL => $pid;
    eventually( sub { !kill 0 => $pid } );
    ok $manager->claim('afterwards')->validate;
};

subtest 'SIGTERM to the keychain: the claims are given up, and the program hears of it' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { push @told, $_[1]->reason } );
    my $claim   = $manager->claim('signalled');
    kill TERM => $manager->keychain_pid;
    sleep 1 until @told;
    like $told[0], qr/\A(?:aborted|keychain-gone)\z/;
    ok eventually( sub { $server->statuses('signalled') eq 'aborted' } );
};

subtest 'stopped: what it does not answer is unknown, never "held"' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { } );
    my $claim   = $manager->claim('stuck');
    my $pid     = $manager->keychain_pid;
    kill STOP => $pid;
    is eval { $claim->validate; 1 }, undef;
    isa_ok $@, 'Leasehold::Error::Unknown';
    kill CONT => $pid;
    ok $claim->validate, 'and it is held again when it goes on';
};

subtest 'many claims, and many managers' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { } );
    my @claims  = map { $manager->claim("many-$_") } 1 .. 200;
    is scalar @{ $manager->list }, 200;
    @claims = ();
    is scalar @{ $manager->list }, 0;
    is scalar keys %{ $manager->{$_} }, 0, "nothing is left in '$_'" for qw(claims newest early claiming);
    my @managers = map { Leasehold::LockManager->new( url => $server->url ) } 1 .. 5;
    @claims = map { $managers[$_]->claim("manager-$_") } 0 .. 4;
    ok $_->validate for @claims;
    my @pids = map { $_->keychain_pid } @managers;
    @claims = @managers = ();
    eventually( sub { !grep { kill 0 => $_ } @pids } );
};

done_testing;
