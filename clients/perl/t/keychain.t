# A keychain that is killed is started again and goes on with its claims; the program hears of those that are lost.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;
use Time::HiRes qw(sleep);

use Leasehold;
use TestServer qw(eventually program stop_process);

my $server = TestServer->start;

# A command that starts the keychain, and can be taken away.
sub command_that_can_vanish {
    my $folder = File::Temp->newdir;
    open my $file, '>', "$folder/leasehold" or die "open: $!";
    print {$file} qq{#!/bin/sh\nexec $ENV{LEASEHOLD_BIN} "\$@"\n};
    close $file;
    chmod 0755, "$folder/leasehold";
    return $folder;
}

subtest 'killed: another one goes on with the claims' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 600, on_lost => sub { push @told, $_[1] } );
    my ( $claim, $other ) = map { $manager->claim( resource => $_, lead => 90, max_hold => 3600 ) } qw(killed other);
    my $pid = $manager->keychain_pid;
    kill KILL => $pid;
    ok eventually( sub { $manager->keychain_pid != $pid } );
    ok $_->validate, $_->resource . ' is held' for $claim, $other;
    ok $claim->refresh;
    is_deeply [ sort map { $_->{claim} } @{ $manager->list } ], [ sort $claim->id, $other->id ];
    is scalar @told, 0, 'nothing is lost';
    ok $claim->release;
    undef $other;
    is $server->statuses($_), 'released' for qw(killed other);
};

subtest 'killed, and the server has ended the claim meanwhile: lost' => sub {
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, ttl => 600, on_lost => sub { push @told, $_[1] } );
    my $claim   = $manager->claim( resource => 'revoked', lead => 90 );
    my $pid     = $manager->keychain_pid;
    stop_process($pid);
    $server->revoke( $claim->id );
    kill KILL => $pid;
    ok eventually( sub { $claim->is_lost } );
    is $told[0]->reason, 'ended';
};

subtest 'killed, and none can be started: the claims are lost at once' => sub {
    my $folder = command_that_can_vanish();
    my @told;
    my $manager = Leasehold::LockManager->new( url => $server->url, command => "$folder/leasehold", on_lost => sub { push @told, $_[1] } );
    my ( $claim, $other ) = map { $manager->claim($_) } qw(gone gone-too);
    my $pid = $manager->keychain_pid;
    unlink "$folder/leasehold";
    kill KILL => $pid;
    sleep 1 until @told == 2;
    is_deeply [ map { $_->reason } @told ], [ ('keychain-gone') x 2 ];
    for my $call (qw(validate refresh release)) {
        is eval { $claim->$call; 1 }, undef;
        isa_ok $@, 'Leasehold::Error::Lost', $call;
        is $@->reason, 'keychain-gone';
    }
    ok $other->is_lost;
};

subtest 'killed while the program does not look: no SIGPIPE, and the claim is released all the same' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 600, on_lost => sub { } );
my $claim = $manager->claim( resource => 'pipe', lead => 90 );
my $blocked = POSIX::SigSet->new( POSIX::SIGURG() );
POSIX::sigprocmask( POSIX::SIG_BLOCK(), $blocked );
kill KILL => $manager->keychain_pid;
select undef, undef, undef, 0.01 while kill 0 => $manager->{keychain}->pid;
print eval { $claim->release; 1 } ? 'released' : ref $@, "\n";
print eval { $manager->ping; 1 } ? 'another' : ref $@, "\n";
PROGRAM
    is $program->line, 'released';
    is $program->line, 'another';
    is $program->end, 'exit 0';
    is $server->statuses('pipe'), 'released';
};

subtest 'killed while a claim waits: it keeps its place' => sub {
    my $id      = $server->take('waits');
    my $manager = Leasehold::LockManager->new( url => $server->url );
    my $pid     = $manager->keychain_pid;
    if ( !fork ) {
        eventually( sub { $server->statuses('waits') eq 'active waiting' } );
        kill KILL => $pid;
        $server->give($id);
        POSIX::_exit(0);
    }
    my $claim = $manager->claim( resource => 'waits', timeout => 60 );
    ok $claim->validate;
    is $server->statuses('waits'), 'released active', 'one claim';
    wait;
};

subtest 'killed, and none can be started: terminate is the default' => sub {
    my $folder  = command_that_can_vanish();
    my $program = program( <<'PROGRAM', $server->url, "$folder/leasehold" );
my $manager = Leasehold::LockManager->new( url => $ARGV[0], command => $ARGV[1] );
my $claim = $manager->claim('terminate');
print $manager->keychain_pid, "\n";
sleep 1000;
PROGRAM
    my $pid = $program->line;
    unlink "$folder/leasehold";
    kill KILL => $pid;
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
    is $told[0], 'aborted';
    ok eventually( sub { $server->statuses('signalled') eq 'aborted' } );
};

subtest 'stopped: what it does not answer is unknown, never "held"' => sub {
    my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { } );
    my $claim   = $manager->claim('stuck');
    my $pid     = $manager->keychain_pid;
    stop_process($pid);
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
