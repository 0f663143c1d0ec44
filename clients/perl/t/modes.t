# Shared claims, slots, sets, and processes that would wait for each other for ever.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold;
use TestServer qw(eventually program);

my $server = TestServer->start;
my @new    = ( url => $server->url, ttl => 30, timeout => 60, on_lost => sub { } );
my ( $one, $two ) = map { Leasehold::LockManager->new(@new) } 1 .. 2;

sub failure {
    my ($code) = @_;
    eval { $code->(); 1 } and return;
    return $@;
}

subtest 'readers share, and a writer does not' => sub {
    my $reader = $one->claim( 'r', shared => 1 );
    my $other  = $two->claim( 'r', shared => 1, timeout => 0 );
    is $other->token,           $reader->token;
    is $other->items->[0]{mode}, 'shared';
    $other->release;
    isa_ok failure( sub { my $writer = $two->claim( 'r', timeout => 0 ) } ), 'Leasehold::Error::NotAcquired';
    $reader->release;
    cmp_ok $two->claim('r')->token, '>', $reader->token;
};

subtest 'slots are numbered' => sub {
    my $first  = $one->claim( 'boards', slots => [ 1, 3 ] );
    my $second = $two->claim( 'boards', slots => [ 2, 3 ] );
    is_deeply [ $first->slots, $second->slots ], [ [1], [ 2, 3 ] ];
    isa_ok failure( sub { my $claim = Leasehold::LockManager->new(@new)->claim( 'boards', slots => [ 1, 4 ] ) } ),
        'Leasehold::Error::Refused';
};

subtest 'a set is held and lost together' => sub {
    my $claim = $one->claim( 'a', also => [ 'b', { resource => 'c', shared => 1 }, { resource => 'd', slots => [ 2, 8 ] } ] );
    is_deeply [ map { $_->{resource} } @{ $claim->items } ], [qw(a b c d)];
    is_deeply $claim->items->[3]{slots}, [ 1, 2 ];
    like +( $server->claims('c') )[0]{url}, qr{/\Q@{[ $claim->id ]}\E/\z};
    $server->revoke( $claim->id );
    eventually( sub { $claim->is_lost } );
    isa_ok failure( sub { $claim->release } ), 'Leasehold::Error::Lost';
    ok $two->claim( 'd', also => [ 'a', 'b' ] )->release, 'all of it is free';
};

subtest 'what holds nothing is refused' => sub {
    for my $mistake ( [ slots => 3 ], [ slots => [ 0, 5 ] ], [ slots => [ 6, 5 ] ], [ shared => 1, slots => [ 1, 5 ] ],
        [ also => 'b' ], [ also => ['wrong'] ], [ also => [ { name => 'b' } ] ] )
    {
        isa_ok failure( sub { my $claim = $one->claim( 'wrong', @{$mistake} ) } ), 'Leasehold::Error::Invalid';
    }
};

subtest 'who would wait for itself is told so' => sub {
    my $claim = $one->claim('mine');
    my $error = failure( sub { my $again = $two->claim('mine') } );
    isa_ok $error, 'Leasehold::Error::Deadlock';
    is_deeply [ map { $_->{link} } @{ $error->cycle } ], [qw(wants holds)];
    local $ENV{LEASEHOLD_SESSION} = $claim->session;
    local $ENV{LEASEHOLD_ADDR}    = $server->url;
    my $code = system { $ENV{LEASEHOLD_BIN} } 'leasehold', 'run', '-q', 'mine', '--', 'true';
    is $code >> 8, 75, 'and so is a command that it starts';
};

subtest 'a forked child is a worker of its own' => sub {
    my $claim = $one->claim('fork');
    my $child = fork;
    if ( !$child ) {
        my $is_held = eval { my $own = $two->claim('fork'); 1 };
        POSIX::_exit( $is_held ? 0 : 1 );
    }
    eventually( sub { $server->statuses('fork') =~ m/waiting/ } );
    $claim->release;
    waitpid $child, 0;
    is $?, 0, 'it waits for its parent like a stranger';
};

done_testing;
