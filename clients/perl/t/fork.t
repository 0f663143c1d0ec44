# A forked child never touches its parent's claims, and may make its own.

use strict;
use warnings;

use lib 't/lib';
use POSIX ();
use Test::More;

use Leasehold;
use TestServer qw(eventually program);

my $server  = TestServer->start;
my $manager = Leasehold::LockManager->new( url => $server->url, on_lost => sub { } );

# Runs code in a child that leaves as a program does, with END blocks and destructors. Returns what it said.
sub in_child {
    my ($code) = @_;
    pipe my $from, my $to or die "pipe: $!";
    my $pid = fork;
    die "fork: $!" if !defined $pid;
    if ( !$pid ) {
        close $from;
        Test::More->builder->no_ending(1);
        my $said = eval { $code->() };
        syswrite $to, defined $said ? $said : "died: $@";
        exit 0;
    }
    close $to;
    local $/ = undef;
    my $said = <$from>;
    waitpid $pid, 0;
    return $said;
}

subtest 'a child that ends leaves the claim of its parent alone' => sub {
    my $claim = $manager->claim('ends');
    is in_child( sub {'bye'} ), 'bye';
    is in_child( sub { undef $claim; undef $manager; 'destroyed' } ), 'destroyed';
    is in_child( sub { $manager->close; 'closed' } ), 'closed';
    is $server->statuses('ends'), 'active';
    ok $claim->validate;
    ok $claim->release, 'and the parent can still release it';
};

subtest 'a child can\'t use the claim of its parent' => sub {
    my $claim = $manager->claim('used');
    for my $call (qw(validate refresh release is_lost)) {
        is in_child( sub { eval { $claim->$call; 1 } ? 'worked' : ref $@ } ), 'Leasehold::Error::Foreign', $call;
    }
    is in_child( sub { $claim->token } ), $claim->token, 'but know its token';
    is $server->statuses('used'), 'active';
};

subtest 'a child makes its own claims, with its parent\'s manager or a new one' => sub {
    my $claim = $manager->claim('shared');
    my $pid   = $manager->keychain_pid;
    my $said  = in_child(
        sub {
            my $own = $manager->claim('of-child');
            my $free = eval { my $taken = $manager->claim( resource => 'shared', timeout => 0 ); 1 } ? 'free' : ref $@;
            return join q{ }, $own->validate > 0, $manager->keychain_pid != $pid, $free;
        }
    );
    is $said, '1 1 Leasehold::Error::NotAcquired', 'it has a keychain of its own, and queues like a stranger';
    is $server->statuses('of-child'), 'released', 'what it made is released at its end';
    is in_child( sub { Leasehold::LockManager->new( url => $server->url )->claim('new')->validate > 0 } ), 1;
    is $server->statuses('new'), 'released';
    is $manager->keychain_pid, $pid;
    ok $claim->validate;
};

subtest 'a child of a child' => sub {
    my $claim = $manager->claim('generations');
    is in_child( sub { my $own = $manager->claim('second'); in_child( sub { $manager->claim('third')->validate > 0 } ) . $own->is_lost } ), '10';
    is $server->statuses($_), 'released' for qw(second third);
    is $server->statuses('generations'), 'active';
};

subtest 'the parent is told of a loss, the child is not' => sub {
    my $file  = File::Temp->new;
    my $told  = sub { syswrite $file, "$$\n" };
    my $own   = Leasehold::LockManager->new( url => $server->url, ttl => 3, on_lost => $told );
    my $claim = $own->claim('told');
    pipe my $from, my $to or die "pipe: $!";
    my $pid = fork;
    if ( !$pid ) { close $to; sysread $from, my $byte, 1; POSIX::_exit(0) }
    close $from;
    $server->revoke( $claim->id );
    eventually( sub { $claim->is_lost } );
    close $to;
    waitpid $pid, 0;
    open my $lines, '<', "$file" or die $!;
    is join( q{}, <$lines> ), "$$\n";
};

subtest 'a parent that is killed holds nothing, though its child has the pipe' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 600 );
my $claim = $manager->claim('killed');
my $pid = fork;
if ( !$pid ) { sleep 1000; exit }
print "child $pid\n";
sleep 1000;
PROGRAM
    my ($child) = $program->line =~ m/child (\d+)/;
    kill KILL => $program->pid;
    is $program->end, 'signal 9';
    ok eventually( sub { $server->statuses('killed') eq 'aborted' } ), 'it is given up at once';
    ok kill( 0 => $child ), 'while the child lives';
    kill KILL => $child;
};

subtest 'a program that forks and waits for all its children' => sub {
    my $program = program( <<'PROGRAM', $server->url );
my $manager = Leasehold::LockManager->new( url => $ARGV[0] );
my $claim = $manager->claim('waits');
for my $code ( 1 .. 3 ) { fork or exit $code }
my $sum = 0;
while ( wait != -1 ) { $sum += $? >> 8 }
print "sum $sum\n";
print "held\n" if $claim->validate;
PROGRAM
    is $program->rest, "sum 6\nheld", 'finds its own and no other';
    is $program->end, 'exit 0';
};

done_testing;
