# A claim is held, renewed and released, and waits its turn.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold;
use TestServer qw(eventually program);

my $server  = TestServer->start;
my $manager = Leasehold::LockManager->new(
    url => $server->url, ttl => 30, timeout => 60, api_version => 'v1', on_lost => sub { }
);

subtest 'a claim is held, refreshed and released' => sub {
    my $claim = $manager->claim( resource => 'r', timeout => 5, data => { who => 'me' } );
    isa_ok $claim, 'Leasehold::Claim';
    is $claim->resource, 'r';
    cmp_ok $claim->token, '>', 0, 'it has a fencing token';
    cmp_ok $claim->validate, '>', 0, 'it certainly holds for a while';
    ok !$claim->is_lost;
    my ($shown) = $server->claims('r');
    is $shown->{status}, 'active';
    is_deeply $shown->{user_data}, { who => 'me' };
    like $shown->{url}, qr{/\Q@{[ $claim->id ]}\E/?\z};
    is_deeply [ map { [ @{$_}{qw(resource claim token)} ] } @{ $manager->list } ],
        [ [ 'r', $claim->id, $claim->token ] ];
    ok $claim->refresh;
    ok $claim->refresh( ttl => 600 ), 'with another ttl';
    cmp_ok $claim->validate, '>', 500, 'which is the ttl from now on';
    ok $claim->release;
    is $server->statuses('r'), 'released';
    ok $claim->release, 'again is no mistake';
    ok !$claim->is_lost, 'what is released is not lost';
};

subtest 'a resource alone, and a resource with parameters' => sub {
    my $alone = $manager->claim('alone');
    is $alone->resource, 'alone';
    my $more = $manager->claim( 'more', ttl => 500 );
    cmp_ok $more->validate, '>', 400;
};

subtest 'the end of its scope releases a claim, also in the middle of die' => sub {
    { my $claim = $manager->claim('scope') }
    is $server->statuses('scope'), 'released';
    is eval {
        my $claim = $manager->claim('die');
        die "on purpose\n";
    }, undef;
    is $@, "on purpose\n", 'and the exception is the program\'s own';
    is $server->statuses('die'), 'released';
    my $claim = $manager->claim('scope');
    undef $claim;
    is $server->statuses('scope'), 'released released';
};

subtest 'a claim that nobody keeps is released, with a warning' => sub {
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    $manager->claim('void');
    is $server->statuses('void'), 'released';
    is scalar @warnings, 1;
    like $warnings[0], qr/not kept.*claim\.t line/s;
};

subtest 'data is any JSON, as a reference or as text' => sub {
    my @cases = ( [ 'a', { host => 'h', pid => 12 } ], [ 'b', [ 1, undef, "\x{e9}" ] ], [ 'c', '{"lsf": [7]}', { lsf => [7] } ], [ 'd', '"text"', 'text' ] );
    for my $case (@cases) {
        my ( $name, $data, $shown ) = @{$case};
        my $claim = $manager->claim( resource => "data-$name", data => $data );
        is_deeply [ $server->claims("data-$name") ]->[0]{user_data}, defined $shown ? $shown : $data;
    }
    my $large = $manager->claim( resource => 'large', data => { text => 'x' x 3000 } );
    is length( ( $server->claims('large') )[0]{user_data}{text} ), 3000;
};

subtest 'names are characters' => sub {
    my $claim = $manager->claim("caf\x{e9}/\x{263a} \"x\" \n");
    my ($shown) = grep { $_->{status} eq 'active' && $_->{resource} =~ m/caf/ } @{ $server->request( GET => '/v1/claims/' ) };
    is $shown->{resource}, "caf\x{e9}/\x{263a} \"x\" \n";
};

subtest 'a second claim waits its turn' => sub {
    my $claim = $manager->claim('turn');
    my $other = program( <<'PROGRAM', $server->url );
my $claim = Leasehold::LockManager->new( $ARGV[0] )->claim('turn');
print "token ", $claim->token, "\n";
PROGRAM
    eventually( sub { $server->statuses('turn') eq 'active waiting' } );
    $claim->release;
    my ($token) = $other->line =~ m/token (\d+)/;
    cmp_ok $token, '>', $claim->token, 'tokens grow';
    is $other->end, 'exit 0';
    is $server->statuses('turn'), 'released released';
};

subtest 'a claim is renewed for longer than its ttl' => sub {
    my $claim = $manager->claim( resource => 'renewed', ttl => 2 );
    my $id    = $claim->id;
    my $age   = 0;
    eventually( sub { $age = ( $server->claims('renewed') )[0]{active_duration}; $age > 4.5 } );
    is $server->statuses('renewed'), 'active';
    cmp_ok $claim->validate, '>', 0;
};

subtest 'close releases everything and ends the keychain' => sub {
    my $own = Leasehold::LockManager->new( url => $server->url );
    my ( $first, $second ) = ( $own->claim('close-1'), $own->claim('close-2') );
    my $pid = $own->keychain_pid;
    is $own->ping->{pid}, $pid;
    ok $own->close;
    is $server->statuses("close-$_"), 'released' for 1, 2;
    ok eventually( sub { !kill 0 => $pid } ), 'the process is gone';
    ok $own->close, 'again is no mistake';
};

done_testing;
