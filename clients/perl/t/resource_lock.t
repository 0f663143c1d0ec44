# lock_resource and unlock_resource: one manager per process, everything released at its end.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold::ResourceLock qw(lock_resource unlock_resource exit_cleanup);
use TestServer qw(eventually program);

my $server = TestServer->start;
$ENV{LEASEHOLD_ADDR} = $server->url;

subtest 'a lock has the name that was asked for' => sub {
    my %names = (
        'by-name'      => ['by-name'],
        'by-resource'  => [ resource      => 'by-resource' ],
        'by-lock'      => [ resource_lock => 'by-lock' ],
        'dir/id.lock'  => [ lock_directory => 'dir', resource_id => 'id' ],
    );
    for my $name ( sort keys %names ) {
        my @arg = @{ $names{$name} };
        is lock_resource(@arg), $name;
        is $server->statuses($name), 'active';
        ok unlock_resource( @arg ), 'and is unlocked by it';
        is $server->statuses($name), 'released';
        is +Leasehold::ResourceLock->lock_resource(@arg), $name, 'as a class method, too';
        ok +Leasehold::ResourceLock->unlock_resource(@arg);
    }
};

subtest 'one that is not free is no lock, and no exception' => sub {
    my $id = $server->take('taken');
    is lock_resource( resource => 'taken', timeout => 0 ), undef;
    is lock_resource( resource_lock => 'taken', max_try => 1, block_sleep => 0.2 ), undef, 'after max_try times block_sleep';
    is_deeply [ lock_resource( resource => 'taken', timeout => 0 ) ], [undef], 'nothing but undef';
    $server->give($id);
    is lock_resource( resource_lock => 'taken', max_try => 100, block_sleep => 1, wait_announce_interval => 5 ), 'taken';
    unlock_resource('taken');
};

subtest 'everything else is an exception' => sub {
    my $thrown = sub {
        my ( $class, $code ) = @_;
        is eval { $code->(); 1 }, undef;
        isa_ok $@, "Leasehold::Error::$class";
    };
    lock_resource('once');
    $thrown->( AlreadyClaimed => sub { lock_resource('once') } );
    unlock_resource('once');
    $thrown->( Ended   => sub { unlock_resource('once') } );
    $thrown->( Invalid => sub { lock_resource( colour => 'red', resource => 'r' ) } );
    $thrown->( Invalid => sub { lock_resource( timeout => 1 ) } );
    $thrown->( Invalid => sub { Leasehold::ResourceLock->configure( url => 'x' ) } );
    $thrown->( Refused => sub { lock_resource( 'x' x 5000 ) } );
    lock_resource( resource => 'revoked', on_lost => sub { }, ttl => 600 );
    $server->revoke( ( $server->claims('revoked') )[0]{url} =~ m{claims/([^/]+)} );
    $thrown->( Lost => sub { unlock_resource('revoked') } );
    is lock_resource('revoked'), 'revoked', 'it can be locked again';
    unlock_resource('revoked');
};

subtest 'without a server there is no lock' => sub {
    my $program = program( <<'PROGRAM' );
use Leasehold::ResourceLock qw(lock_resource);
delete $ENV{LEASEHOLD_ADDR};
print eval { lock_resource('r'); 1 } ? "locked\n" : $@;
PROGRAM
    like $program->rest, qr/Invalid: LEASEHOLD_ADDR is not set/;
};

subtest 'configure: another variable, and settings for all locks' => sub {
    my $program = program( <<'PROGRAM', $server->url );
use Leasehold::ResourceLock qw(lock_resource);
delete $ENV{LEASEHOLD_ADDR};
$ENV{GENOME_LOCK_SERVER} = $ARGV[0];
Leasehold::ResourceLock->configure( url => $ENV{GENOME_LOCK_SERVER}, ttl => 123 );
print lock_resource('configured'), "\n";
<STDIN>;
PROGRAM
    is $program->line, 'configured';
    my ($claim) = $server->claims('configured');
    cmp_ok $claim->{ttl}, '<=', 123;
    cmp_ok $claim->{ttl}, '>',  60;
    is $program->end, 'exit 0';
};

subtest 'one manager per process' => sub {
    lock_resource($_) for qw(one two);
    my $program = program( <<'PROGRAM' );
use Leasehold::ResourceLock qw(lock_resource);
my $started = 0;
my $start = \&Leasehold::Keychain::start;
{ no warnings 'redefine'; *Leasehold::Keychain::start = sub { $started++; goto &$start } }
lock_resource($_) for qw(three four five);
print "$started\n";
PROGRAM
    is $program->rest, 1;
    unlock_resource($_) for qw(one two);
};

subtest 'everything is released at the end, newest first, after the program\'s own END blocks' => sub {
    my $program = program( <<'PROGRAM' );
use Leasehold::ResourceLock qw(lock_resource);
lock_resource("end-$_") for 1 .. 3;
END { print lock_resource('end-4'), "\n" }
exit 5;
PROGRAM
    is $program->rest, 'end-4';
    is $program->end, 'exit 5';
    my @ended = map { my ($claim) = $server->claims("end-$_"); [ "end-$_", $claim->{status}, $claim->{status_history}[-1]{timestamp} ] } 1 .. 4;
    is_deeply [ map { $_->[1] } @ended ], [ ('released') x 4 ];
    is_deeply [ map { $_->[0] } sort { $a->[2] cmp $b->[2] } @ended ], [qw(end-4 end-3 end-2 end-1)];
};

subtest 'exit_cleanup releases everything, and locks may be taken again' => sub {
    lock_resource("cleanup-$_") for 1, 2;
    ok exit_cleanup();
    is $server->statuses("cleanup-$_"), 'released' for 1, 2;
    is lock_resource('cleanup-1'), 'cleanup-1';
    ok unlock_resource('cleanup-1');
};

subtest 'a child has no locks, and may take its own' => sub {
    my $program = program( <<'PROGRAM' );
use Leasehold::ResourceLock qw(lock_resource unlock_resource);
lock_resource('parent');
if ( !fork ) {
    print eval { unlock_resource('parent'); 1 } ? "unlocked\n" : ref $@, "\n";
    print lock_resource( resource => 'parent', timeout => 0 ) ? "locked\n" : "not free\n";
    print lock_resource('child'), "\n";
    exit;
}
wait;
print unlock_resource('parent'), "\n";
PROGRAM
    is $program->rest, "Leasehold::Error::Ended\nnot free\nchild\n1";
    is $server->statuses('child'), 'released';
    is $server->statuses('parent'), 'released withdrawn';
};

subtest 'a program that is killed holds nothing' => sub {
    my $program = program( <<'PROGRAM' );
use Leasehold::ResourceLock qw(lock_resource);
print lock_resource( resource => 'killed', ttl => 600 ), "\n";
sleep 1000;
PROGRAM
    is $program->line, 'killed';
    kill TERM => $program->pid;
    is $program->end, 'signal 15';
    ok eventually( sub { $server->statuses('killed') eq 'aborted' } );
};

subtest '$@ and $? are untouched' => sub {
    system $^X, '-e', 'exit 42';
    $@ = 'mine';
    lock_resource('variables');
    unlock_resource('variables');
    is $@, 'mine';
    is $? >> 8, 42;
};

done_testing;
